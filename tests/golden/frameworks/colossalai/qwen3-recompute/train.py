# ColossalAI (ColossalAI main of April 2026 (4f9953b, after 0.5.1), transformers 4.51)
# qwen3 on 2x8xh100: 16 accelerators = tp 4 x cp 1 x pp 1 x dp 4
# train_batch 64 = micro_batch 1 * accumulation 16 * dp 4
# A smoke run on MOCK DATA: to train, give it data, a learning rate and TRAIN_ITERS.
"""Trains the model of config.json from scratch on MOCK DATA, random tokens, with ColossalAI."""

import os
import time
from contextlib import nullcontext
from pathlib import Path

import colossalai
import torch
import torch.distributed as dist
from colossalai.accelerator import get_accelerator
from colossalai.booster import Booster
from colossalai.booster.plugin import HybridParallelPlugin
from colossalai.lazy import LazyInitContext
from colossalai.nn.optimizer import HybridAdam
from torch.utils.data import Dataset
from transformers import AutoConfig
from transformers import AutoModelForCausalLM

# Not part of the plan and left at the default: set by hand what the model's config.json
# says otherwise.
#   norm epsilon: rms_norm_eps, layer_norm_epsilon in config.json
#   rotary base and scaling: rope_theta, rope_scaling in config.json
#   activation: hidden_act, activation_function in config.json
#   spread of the initial weights: initializer_range in config.json

STEPS = int(os.environ.get("TRAIN_ITERS") or 20)  # a smoke run: iterations of 131072 tokens
SEQ_LENGTH = 2048  # tokens of one sequence
MICRO_BATCH_SIZE = 1  # sequences per pass and rank
ACCUMULATION = 16  # train batch 64 = micro batch 1 x this x dp 4
DTYPE = torch.bfloat16  # of the weights that are built
RECOMPUTE = True  # whole layers computed again
LEARNING_RATE = 1.0e-4  # PLACEHOLDER for the smoke run: set your own
OPTIMIZER = "adam"  # as planned
PIPELINE = False  # the plugin runs the micro-batches of a step
ONE_REDUCTION = True  # gradients are reduced with the last micro-batch of a step


def plugin():
    return HybridParallelPlugin(
        tp_size=4,  # ranks that split every layer
        pp_size=1,  # stages of layers
        dp_outside=False,  # True: stages next to each other, replicas apart
        zero_stage=1,  # 1: states sharded, 2: gradients too
        overlap_communication=True,  # gradients reduced during the backward pass
        overlap_allgather=True,  # weights gathered during the forward
        communication_dtype=torch.bfloat16,  # gradients are reduced in it
        cpu_offload=False,  # states live in host memory
        make_vocab_size_divisible_by=128,  # rows of the embedding are padded
        precision="bf16",  # type of weights and activations
        enable_flash_attention=True,  # attention kernel
        max_norm=1.0,  # PLACEHOLDER for the smoke run: set your own
    )


class MockData(Dataset):
    """Put your data here: sequences of SEQ_LENGTH tokens; the model shifts the labels."""

    def __init__(self, vocab_size, count):
        self.vocab_size, self.count = vocab_size, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        random = torch.Generator().manual_seed(index)
        tokens = torch.randint(self.vocab_size, (SEQ_LENGTH,), generator=random)
        return {"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones_like(tokens)}


def optimizer_of(model):
    if OPTIMIZER == "sgd":
        return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    return HybridAdam(model.parameters(), lr=LEARNING_RATE)


def main():
    colossalai.launch_from_torch()
    parallel = plugin()
    booster = Booster(plugin=parallel)
    device = get_accelerator().get_current_device()
    config = AutoConfig.from_pretrained(Path(__file__).with_name("config.json"))
    with LazyInitContext(default_device=device):
        model = AutoModelForCausalLM.from_config(
            config, torch_dtype=DTYPE, attn_implementation="eager"
        )
    if RECOMPUTE:
        plain = {"use_reentrant": False}  # zb-v demands it
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=plain)
    optimizer = optimizer_of(model)

    # With a pipeline the plugin takes all micro-batches of a step at once.
    batch_size = MICRO_BATCH_SIZE * (ACCUMULATION if PIPELINE else 1)
    count = STEPS * MICRO_BATCH_SIZE * ACCUMULATION * dist.get_world_size()
    loader = parallel.prepare_dataloader(MockData(config.vocab_size, count), batch_size)
    model, optimizer, _, loader, _ = booster.boost(model, optimizer, dataloader=loader)
    batches, start = iter(loader), time.perf_counter()
    for step in range(1, STEPS + 1):
        if PIPELINE:
            outputs = booster.execute_pipeline(
                batches, model, lambda outputs, inputs: outputs[0], optimizer, return_loss=True
            )
            loss = outputs["loss"]
        else:
            for part in range(ACCUMULATION):
                batch = {key: value.to(device) for key, value in next(batches).items()}
                local = ONE_REDUCTION and part < ACCUMULATION - 1
                with booster.no_sync(model, optimizer) if local else nullcontext():
                    loss = model(**batch)[0]
                    booster.backward(loss / ACCUMULATION, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        seconds, start = time.perf_counter() - start, time.perf_counter()
        # In a pipeline one stage has the loss.
        if loss is not None and (PIPELINE or dist.get_rank() == 0):
            print(f"step {step}: loss {loss.item():.4f}, {seconds:.3f} s", flush=True)


if __name__ == "__main__":
    main()
