"""Template of train.py, in which plans differ only at the top, and of its launch script."""

from __future__ import annotations

TRAIN = '''\
{head}
"""Trains the model of config.json from scratch on MOCK DATA, random tokens, with ColossalAI."""

{imports}

{unwritten}

{constants}


def plugin():
{plugin}


class MockData(Dataset):
    """Put your data here: sequences of SEQ_LENGTH tokens; the model shifts the labels."""

    def __init__(self, vocab_size, count):
        self.vocab_size, self.count = vocab_size, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        random = torch.Generator().manual_seed(index)
        tokens = torch.randint(self.vocab_size, (SEQ_LENGTH,), generator=random)
        return {{"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones_like(tokens)}}


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
        plain = {{"use_reentrant": False}}  # zb-v demands it
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
                batch = {{key: value.to(device) for key, value in next(batches).items()}}
                local = ONE_REDUCTION and part < ACCUMULATION - 1
                with booster.no_sync(model, optimizer) if local else nullcontext():
                    loss = model(**batch)[0]
                    booster.backward(loss / ACCUMULATION, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        seconds, start = time.perf_counter() - start, time.perf_counter()
        # In a pipeline one stage has the loss.
        if loss is not None and (PIPELINE or dist.get_rank() == 0):
            print(f"step {{step}}: loss {{loss.item():.4f}}, {{seconds:.3f}} s", flush=True)


if __name__ == "__main__":
    main()
'''
# Imports for the names that train.py may use.
IMPORTS = (
    "import os",
    "import time",
    "from contextlib import nullcontext",
    "from pathlib import Path",
    "",
    "import colossalai",
    "import torch",
    "import torch.distributed as dist",
    "from colossalai.accelerator import get_accelerator",
    "from colossalai.booster import Booster",
    "from colossalai.booster.plugin import GeminiPlugin",
    "from colossalai.booster.plugin import HybridParallelPlugin",
    "from colossalai.booster.plugin import MoeHybridParallelPlugin",
    "from colossalai.lazy import LazyInitContext",
    "from colossalai.nn.optimizer import HybridAdam",
    "from colossalai.pipeline.schedule.v_schedule import PipelineGraph",
    "from colossalai.shardformer import PipelineGradientCheckpointConfig",
    "from torch.utils.data import Dataset",
    "from transformers import AutoConfig",
    "from transformers import AutoModelForCausalLM",
)
LAUNCH = """\
#!/usr/bin/env bash
{head}
set -euo pipefail

# Wherever ColossalAI is installed: train.py and config.json beside this script are all it needs.
{bundle}
{rendezvous}
export TRAIN_ITERS="${{TRAIN_ITERS:-}}"  # empty: as in train.py
{exports}
{launch}

torchrun "${{LAUNCH_ARGS[@]}}" "$BUNDLE/train.py"
"""
