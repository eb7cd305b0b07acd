"""Writes random tokens as a Megatron-DeepSpeed data set: mock_data.py PREFIX VOCAB LENGTH."""

import sys

import torch
from megatron.data.indexed_dataset import make_builder

prefix, vocab_size, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
random = torch.Generator().manual_seed(0)
builder = make_builder(prefix + ".bin", impl="mmap", vocab_size=vocab_size)
for _ in range(64):
    builder.add_item(torch.randint(vocab_size, (length,), generator=random))
    builder.end_document()
builder.finalize(prefix + ".idx")
