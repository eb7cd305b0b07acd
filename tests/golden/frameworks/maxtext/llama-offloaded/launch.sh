#!/usr/bin/env bash
# MaxText (main of August 2026 (e591f30))
# llama on 4x4xtpu-v5p: 16 accelerators = tp 1 x cp 1 x pp 1 x dp 16
# train_batch 64 = micro_batch 1 * accumulation 4 * dp 16
# A smoke run on MOCK DATA: to train, give config.yml data, a learning rate, steps.
set -euo pipefail

# 4 hosts of 4 accelerators: one call, and one process, on each.

BUNDLE="${BASH_SOURCE[0]%/*}"
[ -d "$BUNDLE" ] || BUNDLE=.

# Where MaxText is installed (pip install of its checkout).
python3 -m maxtext.trainers.pre_train.train "$BUNDLE/config.yml" "$@"
