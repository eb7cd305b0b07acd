#!/usr/bin/env bash
# TRL (1.10 (main of July 2026, f2cd577) with transformers 5, accelerate 1.15)
# llama on 2x8xh100: 16 accelerators = tp 1 x cp 1 x pp 1 x dp 16
# train_batch 64 = micro_batch 1 * accumulation 4 * dp 16
# A few steps on a sample data set: give config.yaml your own.
set -euo pipefail

# One call on each of the 2 nodes.
NNODES="${NNODES:-2}"
NODE_RANK="${NODE_RANK:?set it to the number of this node, 0 to 1}"
MASTER_ADDR="${MASTER_ADDR:?set it to the address of node 0, the same on every node}"
MASTER_PORT="${MASTER_PORT:-29500}"
BUNDLE="${BASH_SOURCE[0]%/*}"
[ -d "$BUNDLE" ] || BUNDLE=.
MODEL="${MODEL:-$BUNDLE}"  # a checkpoint of the model of config.json

# Not part of the plan and left at the default: set by hand what the model's config.json
# says otherwise.
#   norm epsilon: rms_norm_eps, layer_norm_epsilon in config.json
#   rotary base and scaling: rope_parameters in config.json
#   activation: hidden_act, activation_function in config.json
#   spread of the initial weights: initializer_range in config.json
#   special tokens: bos_token_id, eos_token_id in config.json
LAUNCH_ARGS=(
  --config_file "$BUNDLE/accelerate.yaml"
  --num_machines "$NNODES"
  --machine_rank "$NODE_RANK"
  --main_process_ip "$MASTER_ADDR"
  --main_process_port "$MASTER_PORT"
)

accelerate launch "${LAUNCH_ARGS[@]}" --module trl.scripts.sft \
  --config "$BUNDLE/config.yaml" --model_name_or_path "$MODEL" "$@"
