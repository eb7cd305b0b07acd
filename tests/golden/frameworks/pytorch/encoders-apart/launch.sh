#!/usr/bin/env bash
# Native PyTorch (torch 2.13)
# llama on 2x8xh100: 16 accelerators = tp 2 x cp 1 x pp 2 x dp 4
# train_batch 64 = micro_batch 1 * accumulation 16 * dp 4
# A smoke run on MOCK DATA: to train, give it data, a learning rate and TRAIN_ITERS.
set -euo pipefail

# One call on each of the 2 nodes.
NNODES="${NNODES:-2}"
NODE_RANK="${NODE_RANK:?set it to the number of this node, 0 to 1}"
MASTER_ADDR="${MASTER_ADDR:?set it to the address of node 0, the same on every node}"
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
