#!/usr/bin/env bash
# Native PyTorch (torch 2.13)
# llama on 1x8xh100: 8 accelerators = tp 2 x cp 2 x pp 1 x dp 2
# train_batch 64 = micro_batch 1 * accumulation 32 * dp 2
# A smoke run on MOCK DATA: to train, give it data, a learning rate and TRAIN_ITERS.
set -euo pipefail

# One node.
NNODES="${NNODES:-1}"
NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
# The training script lies beside this one.  Without GPUs it runs on CPUs, for a small model.
BUNDLE="${BASH_SOURCE[0]%/*}"
[ -d "$BUNDLE" ] || BUNDLE=.
TRAIN_ITERS="${TRAIN_ITERS:-20}"  # a smoke run: iterations of 131072 tokens
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True  # less fragmentation, as the plan counts
LAUNCH_ARGS=(
  --nnodes "$NNODES"
  --nproc_per_node 8
  --node_rank "$NODE_RANK"
  --master_addr "$MASTER_ADDR"
  --master_port "$MASTER_PORT"
)
# Words name=value replace entries of CONFIG in the training script.
torchrun "${LAUNCH_ARGS[@]}" "$BUNDLE/train.py" "train_iters=$TRAIN_ITERS" "$@"
