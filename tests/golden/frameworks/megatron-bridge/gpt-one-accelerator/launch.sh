#!/usr/bin/env bash
# Megatron-Bridge (Megatron-Bridge main of August 2026 (067f987) on Megatron-Core 0.20)
# gpt on 1x1xh100: 1 accelerators = tp 1 x cp 1 x pp 1 x dp 1
# train_batch 64 = micro_batch 1 * accumulation 64 * dp 1
# A smoke run on MOCK DATA: to train, give it data, a learning rate and TRAIN_ITERS.
set -euo pipefail

# Wherever Megatron-Bridge is installed: recipe.py beside this script is all it needs.
BUNDLE="${BASH_SOURCE[0]%/*}"
[ -d "$BUNDLE" ] || BUNDLE=.
# One node.
NNODES="${NNODES:-1}"
NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
export TRAIN_ITERS="${TRAIN_ITERS:-}"  # empty: as in recipe.py

LAUNCH_ARGS=(
  --nnodes "$NNODES"
  --nproc_per_node 1
  --node_rank "$NODE_RANK"
  --master_addr "$MASTER_ADDR"
  --master_port "$MASTER_PORT"
)

torchrun "${LAUNCH_ARGS[@]}" "$BUNDLE/recipe.py"
