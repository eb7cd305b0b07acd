#!/usr/bin/env bash
# MaxText (main of August 2026 (e591f30))
# mixtral on 2x8xh100: 16 accelerators = tp 2 x cp 1 x pp 1 x dp 8
# train_batch 64 = micro_batch 1 * accumulation 8 * dp 8
# A smoke run on MOCK DATA: to train, give config.yml data, a learning rate, steps.
set -euo pipefail

# 2 hosts of 8 accelerators: one call, and one process, on each.
# One call on each of the 2 nodes.
NNODES="${NNODES:-2}"
NODE_RANK="${NODE_RANK:?set it to the number of this node, 0 to 1}"
MASTER_ADDR="${MASTER_ADDR:?set it to the address of node 0, the same on every node}"
MASTER_PORT="${MASTER_PORT:-29500}"
BUNDLE="${BASH_SOURCE[0]%/*}"
[ -d "$BUNDLE" ] || BUNDLE=.
export NNODES NODE_RANK
export JAX_COORDINATOR_IP="$MASTER_ADDR"
export JAX_COORDINATOR_PORT="$MASTER_PORT"
export XLA_PYTHON_CLIENT_MEM_FRACTION=0.92  # of the memory, for JAX; the rest is NCCL's
# Where MaxText is installed (pip install of its checkout).
python3 -m maxtext.trainers.pre_train.train "$BUNDLE/config.yml" "$@"
