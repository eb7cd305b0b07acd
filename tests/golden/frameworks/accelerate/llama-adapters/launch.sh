#!/usr/bin/env bash
# Hugging Face accelerate (accelerate 1.15.0, transformers 5.23.0, torch 2.13)
# llama on 1x8xh100: 8 accelerators = tp 1 x cp 1 x pp 1 x dp 8
# train_batch 64 = micro_batch 1 * accumulation 8 * dp 8
# A smoke run on MOCK DATA: to train, give it data, a learning rate and TRAIN_ITERS.
set -euo pipefail

# One node.
NNODES="${NNODES:-1}"
NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
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
  --gradient_accumulation_steps 8  # train batch 64 = micro batch 1 x this x dp 8
  --lora_rank 8  # adapters beside frozen matrices
  --lora_targets 'q_proj,v_proj'  # the modules they adapt
  --lora_dropout 0.1  # before the adapters
  --optim adamw_torch  # as planned
  --learning_rate 1.0e-4  # PLACEHOLDER for the smoke run: set your own
  --max_train_steps "$TRAIN_ITERS"  # set above
)

accelerate launch "${LAUNCH_ARGS[@]}" "$BUNDLE/train.py" \
  --config_name "$BUNDLE/config.json" \
  "${MODEL_ARGS[@]}" \
  "${TRAINING_ARGS[@]}" \
  "$@"
