#!/usr/bin/env bash
# Primus (main of August 2026 (fd1eeab) on Megatron-LM d3528a2 (core 0.20))
# gpt on 1x1xmi300x: 1 accelerators = tp 1 x cp 1 x pp 1 x dp 1
# train_batch 64 = micro_batch 1 * accumulation 64 * dp 1
# A smoke run on MOCK DATA: to train, give config.yaml data, a learning rate, steps.
set -euo pipefail

# One node.
NNODES="${NNODES:-1}"
NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
PRIMUS_PATH="${PRIMUS_PATH:-.}"  # a checkout of Primus with its submodules
BUNDLE="${BASH_SOURCE[0]%/*}"
[ -d "$BUNDLE" ] || BUNDLE=.

LAUNCH_ARGS=(
  --nnodes "$NNODES"
  --nproc_per_node 1
  --node_rank "$NODE_RANK"
  --master_addr "$MASTER_ADDR"
  --master_port "$MASTER_PORT"
)

torchrun "${LAUNCH_ARGS[@]}" "$PRIMUS_PATH/primus/cli/main.py" train pretrain \
  --config "$BUNDLE/config.yaml" \
  "$@"
