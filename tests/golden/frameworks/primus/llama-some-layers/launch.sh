#!/usr/bin/env bash
# Primus (main of August 2026 (fd1eeab) on Megatron-LM d3528a2 (core 0.20))
# llama on 2x8xmi300x: 16 accelerators = tp 2 x cp 1 x pp 4 x dp 2
# train_batch 64 = micro_batch 1 * accumulation 32 * dp 2
# A smoke run on MOCK DATA: to train, give config.yaml data, a learning rate, steps.
set -euo pipefail

# One call on each of the 2 nodes.
NNODES="${NNODES:-2}"
NODE_RANK="${NODE_RANK:?set it to the number of this node, 0 to 1}"
MASTER_ADDR="${MASTER_ADDR:?set it to the address of node 0, the same on every node}"
MASTER_PORT="${MASTER_PORT:-29500}"
PRIMUS_PATH="${PRIMUS_PATH:-.}"  # a checkout of Primus with its submodules
BUNDLE="${BASH_SOURCE[0]%/*}"
[ -d "$BUNDLE" ] || BUNDLE=.
export CUDA_DEVICE_MAX_CONNECTIONS=1  # orders traffic before the kernels that hide it (tp, cp)
LAUNCH_ARGS=(
  --nnodes "$NNODES"
  --nproc_per_node 8
  --node_rank "$NODE_RANK"
  --master_addr "$MASTER_ADDR"
  --master_port "$MASTER_PORT"
)

torchrun "${LAUNCH_ARGS[@]}" "$PRIMUS_PATH/primus/cli/main.py" train pretrain \
  --config "$BUNDLE/config.yaml" \
  "$@"
