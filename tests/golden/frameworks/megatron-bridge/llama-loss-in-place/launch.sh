#!/usr/bin/env bash
# Megatron-Bridge (Megatron-Bridge main of August 2026 (067f987) on Megatron-Core 0.20)
# llama on 2x8xh100: 16 accelerators = tp 2 x cp 1 x pp 1 x dp 8
# train_batch 64 = micro_batch 1 * accumulation 8 * dp 8
# A smoke run on MOCK DATA: to train, give it data, a learning rate and TRAIN_ITERS.
set -euo pipefail

# Wherever Megatron-Bridge is installed: recipe.py beside this script is all it needs.
BUNDLE="${BASH_SOURCE[0]%/*}"
[ -d "$BUNDLE" ] || BUNDLE=.
# One call on each of the 2 nodes.
NNODES="${NNODES:-2}"
NODE_RANK="${NODE_RANK:?set it to the number of this node, 0 to 1}"
MASTER_ADDR="${MASTER_ADDR:?set it to the address of node 0, the same on every node}"
MASTER_PORT="${MASTER_PORT:-29500}"
export TRAIN_ITERS="${TRAIN_ITERS:-}"  # empty: as in recipe.py
export CUDA_DEVICE_MAX_CONNECTIONS=1  # orders traffic before the kernels that hide it (tp, cp)
LAUNCH_ARGS=(
  --nnodes "$NNODES"
  --nproc_per_node 8
  --node_rank "$NODE_RANK"
  --master_addr "$MASTER_ADDR"
  --master_port "$MASTER_PORT"
)

torchrun "${LAUNCH_ARGS[@]}" "$BUNDLE/recipe.py"
