"""The training script of a bundle; plans differ only in its options."""

from __future__ import annotations

TRAIN = '''\
"""Trains the model of a config.json from scratch on MOCK DATA, random tokens, with accelerate."""

import argparse
import contextlib
import dataclasses
import time
from functools import partial

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin, set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def adam_8bit(parameters, lr):
    from torchao.optim import AdamW8bit  # pip install torchao; supports FSDP 2 shards

    return AdamW8bit(parameters, lr=lr)


OPTIMIZERS = {
    "adamw_torch": torch.optim.AdamW,
    "adamw_torch_8bit": adam_8bit,
    "sgd": partial(torch.optim.SGD, momentum=0.9),
    "adafactor": partial(torch.optim.Adafactor, foreach=False),
}


class MockData(Dataset):
    """Put your data here: sequences of one token more than the model sees."""

    def __init__(self, vocab_size, length, count):
        self.vocab_size, self.length, self.count = vocab_size, length, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        random = torch.Generator().manual_seed(index)
        return torch.randint(self.vocab_size, (self.length,), generator=random)


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config_name", required=True)
    parser.add_argument("--block_size", type=int, required=True)
    parser.add_argument("--attn_implementation", required=True)
    parser.add_argument("--per_device_train_batch_size", type=int, required=True)
    parser.add_argument("--gradient_accumulation_steps", type=int, required=True)
    parser.add_argument("--sync_each_batch", action="store_true")
    parser.add_argument("--reduce_dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--gradient_checkpointing", action="store_true")
    parser.add_argument("--optim", choices=OPTIMIZERS, required=True)
    parser.add_argument("--learning_rate", type=float, required=True)
    parser.add_argument("--max_train_steps", type=int, required=True)
    return parser.parse_args()


def build(args, accelerator, config):
    """The model with random weights in fp32, which are the master weights."""
    loads = accelerator.is_fsdp2 and accelerator.state.fsdp_plugin.cpu_ram_efficient_loading
    # Where rank 0 broadcasts its weights, the other ranks need only their shapes.
    empty = loads and not accelerator.is_main_process
    with no_init_weights() if empty else contextlib.nullcontext():
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation=args.attn_implementation
        )
    model.tie_weights()
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    return model.train()


def main():
    args = options()
    accelerator = Accelerator(
        gradient_accumulation_plugin=GradientAccumulationPlugin(
            num_steps=args.gradient_accumulation_steps, sync_each_batch=args.sync_each_batch
        )
    )
    if accelerator.is_fsdp2:
        plugin = accelerator.state.fsdp_plugin
        plugin.mixed_precision_policy = dataclasses.replace(
            plugin.mixed_precision_policy, reduce_dtype=DTYPES[args.reduce_dtype]
        )
    set_seed(0)
    config = AutoConfig.from_pretrained(args.config_name)
    model = build(args, accelerator, config)
    optimizer = OPTIMIZERS[args.optim](model.parameters(), lr=args.learning_rate)
    micro = args.per_device_train_batch_size
    passes = args.max_train_steps * args.gradient_accumulation_steps
    count = passes * micro * accelerator.num_processes
    loader = DataLoader(MockData(config.vocab_size, args.block_size + 1, count), batch_size=micro)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    positions = torch.arange(args.block_size, device=accelerator.device)
    step, start = 0, time.perf_counter()
    for tokens in loader:
        batch = {
            "input_ids": tokens[:, :-1].contiguous(),
            "labels": tokens[:, :-1].contiguous(),
            "shift_labels": tokens[:, 1:].contiguous(),
            "position_ids": positions.expand(len(tokens), -1).contiguous(),
        }
        parts = list(batch.values())
        with (
            accelerator.accumulate(model),
            accelerator.maybe_context_parallel(parts, [1] * len(parts), set(parts)),
        ):
            loss = model(**batch, use_cache=False).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            step, now = step + 1, time.perf_counter()
            accelerator.print(f"step {step}: loss {loss.item():.4f}, {now - start:.3f} s")
            start = now
        if step == args.max_train_steps:
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
'''

_CHANGES = (
    (
        "from torch.utils.data import",
        "from peft import LoraConfig, get_peft_model\nfrom torch.utils.data import",
    ),
    (
        "    return parser.parse_args()\n",
        """\
    parser.add_argument("--lora_rank", type=int, required=True)
    parser.add_argument("--lora_targets", required=True)
    parser.add_argument("--lora_dropout", type=float, default=0.0)
    return parser.parse_args()
""",
    ),
    (
        '"""The model with random weights in fp32, which are the master weights."""',
        '"""Random frozen weights in half precision; PEFT keeps adapters in fp32, as masters."""',
    ),
    ("config, dtype=torch.float32,", "config, dtype=DTYPES[accelerator.mixed_precision],"),
    (
        "    if args.gradient_checkpointing:\n        model.gradient_checkpointing_enable()\n",
        """\
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    adapters = LoraConfig(
        r=args.lora_rank,
        lora_alpha=2 * args.lora_rank,
        lora_dropout=args.lora_dropout,
        target_modules=args.lora_targets.split(","),
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(model, adapters)
""",
    ),
)


def train_script(adapters: bool) -> str:
    """train.py, with or without LoRA adapters."""
    script = TRAIN
    for old, new in _CHANGES if adapters else ():
        assert script.count(old) == 1, old
        script = script.replace(old, new)
    return script
