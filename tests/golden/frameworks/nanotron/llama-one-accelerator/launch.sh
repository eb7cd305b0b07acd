#!/usr/bin/env bash
# nanotron (main of April 2026 (2411b02))
# llama on 1x1xh100: 1 accelerators = tp 1 x cp 1 x pp 1 x dp 1
# train_batch 64 = micro_batch 1 * accumulation 64 * dp 1
# A smoke run on MOCK DATA: to train, give config.yaml data, a learning rate, steps.
set -euo pipefail

# One node.
NNODES="${NNODES:-1}"
NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
NANOTRON_PATH="${NANOTRON_PATH:-.}"  # a checkout of nanotron, installed
BUNDLE="${BASH_SOURCE[0]%/*}"
[ -d "$BUNDLE" ] || BUNDLE=.
export WANDB_MODE=disabled  # where wandb is installed it would log in
LAUNCH_ARGS=(
  --nnodes "$NNODES"
  --nproc_per_node 1
  --node_rank "$NODE_RANK"
  --master_addr "$MASTER_ADDR"
  --master_port "$MASTER_PORT"
)

torchrun "${LAUNCH_ARGS[@]}" "$NANOTRON_PATH/run_train.py" \
  --config-file "$BUNDLE/config.yaml" \
  "$@"
