#!/usr/bin/env bash
# Hugging Face accelerate (accelerate 1.15.0, transformers 5.23.0, torch 2.13)
# llama on 2x8xh100: 16 accelerators = tp 1 x cp 1 x pp 1 x dp 16
# train_batch 64 = micro_batch 1 * accumulation 4 * dp 16
# A smoke run on MOCK DATA: to train, give it data, a learning rate and TRAIN_ITERS.
set -euo pipefail

# One call on each of the 2 nodes.
NNODES="${NNODES:-2}"
NODE_RANK="${NODE_RANK:?set it to the number of this node, 0 to 1}"
MASTER_ADDR="${MASTER_ADDR:?set it to the address of node 0, the same on every node}"
MASTER_PORT="${MASTER_PORT:-29500}"
BUNDLE="${BASH_SOURCE[0]%/*}"
[ -d "$BUNDLE" ] || BUNDLE=.
TRAIN_ITERS="${TRAIN_ITERS:-20}"  # a smoke run: iterations of 131072 tokens

LAUNCH_ARGS=(
  --config_file "$BUNDLE/accelerate.yaml"
  --num_machines "$NNODES"
  --machine_rank "$NODE_RANK"
  --main_process_ip "$MASTER_ADDR"
  --main_process_port "$MASTER_PORT"
)
# Not part of the plan and left at the default: set by hand what the model's config.json
# says otherwise.
#   norm epsilon: rms_norm_eps, layer_norm_epsilon in config.json
#   rotary base and scaling: rope_parameters in config.json
#   activation: hidden_act, activation_function in config.json
#   spread of the initial weights: initializer_range in config.json
#   special tokens: bos_token_id, eos_token_id in config.json
MODEL_ARGS=(
  --block_size 2048  # tokens of one sequence
  --attn_implementation sdpa  # attention kernel
)
TRAINING_ARGS=(
  --per_device_train_batch_size 1  # sequences per pass and rank
  --gradient_accumulation_steps 4  # train batch 64 = micro batch 1 x this x dp 16
  --sync_each_batch  # gradients stay sharded between micro-batches
  --reduce_dtype fp32  # gradients are reduced in it
  --optim adamw_torch_8bit  # as planned
  --learning_rate 1.0e-4  # PLACEHOLDER for the smoke run: set your own
  --max_train_steps "$TRAIN_ITERS"  # set above
)

accelerate launch "${LAUNCH_ARGS[@]}" "$BUNDLE/train.py" \
  --config_name "$BUNDLE/config.json" \
  "${MODEL_ARGS[@]}" \
  "${TRAINING_ARGS[@]}" \
  "$@"
