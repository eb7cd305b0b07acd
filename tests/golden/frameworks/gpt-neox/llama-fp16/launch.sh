#!/usr/bin/env bash
# GPT-NeoX (main of May 2026 (ea7aefd) with DeepSpeed)
# llama on 2x8xh100: 16 accelerators = tp 2 x cp 1 x pp 1 x dp 8
# train_batch 64 = micro_batch 2 * accumulation 4 * dp 8
# A smoke run on MOCK DATA: to train, give config.yml data, a learning rate, steps.
set -euo pipefail

# Run it once, on the first node; the launcher reaches the others through the hostfile.
# Every node must see this folder and the checkout under the same paths.
NEOX_PATH="$(cd "${NEOX_PATH:-.}" && pwd)"  # a checkout of GPT-NeoX, installed
BUNDLE="${BASH_SOURCE[0]%/*}"
[ -d "$BUNDLE" ] || BUNDLE=.
cd "$BUNDLE"
export DLTS_HOSTFILE="${HOSTFILE:-hostfile}"

if [ ! -f mock_data/mock.idx ]; then
  PYTHONPATH="$NEOX_PATH" python3 mock_data.py mock_data 32000 2049
fi

python3 "$NEOX_PATH/deepy.py" "$NEOX_PATH/train.py" config.yml "$@"
