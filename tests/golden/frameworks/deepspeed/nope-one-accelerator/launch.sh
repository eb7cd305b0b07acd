#!/usr/bin/env bash
# Megatron-DeepSpeed (DeepSpeed 0.16 to 0.19; Megatron-DeepSpeed of July 2025 (4efb479))
# nope on 1x1xh100: 1 accelerators = tp 1 x cp 1 x pp 1 x dp 1
# train_batch 64 = micro_batch 4 * accumulation 16 * dp 1
# A smoke run on MOCK DATA: to train, give it data, a learning rate and TRAIN_ITERS.
set -euo pipefail

# Run it once, on the first node; the launcher reaches the others through the hostfile.
# Every node must see this folder and the checkout under the same paths.
BUNDLE="${BASH_SOURCE[0]%/*}"
[ -d "$BUNDLE" ] || BUNDLE=.
HOSTFILE="${HOSTFILE:-$BUNDLE/hostfile}"
MASTER_PORT="${MASTER_PORT:-29500}"
MEGATRON_PATH="${MEGATRON_PATH:-.}"  # a checkout of Megatron-DeepSpeed
# Without DATA_PATH it trains on MOCK DATA, random tokens: nothing to learn.
DATA_PATH="${DATA_PATH:-$BUNDLE/mock_data}"
TRAIN_ITERS="${TRAIN_ITERS:-20}"  # a smoke run: iterations of 131072 tokens

if [ ! -f "$DATA_PATH.idx" ]; then
  PYTHONPATH="$MEGATRON_PATH" python3 "$BUNDLE/mock_data.py" "$DATA_PATH" 32768 2049
fi

LAUNCH_ARGS=(
  --hostfile "$HOSTFILE"
  --num_nodes 1
  --num_gpus 1
  --master_port "$MASTER_PORT"
)
DEEPSPEED_ARGS=(
  --deepspeed
  --deepspeed_config "$BUNDLE/ds_config.json"
  --data-path "$DATA_PATH"
)
# Not part of the plan and left at the default: set by hand what the model's config.json
# says otherwise.
#   norm epsilon: --layernorm-epsilon (1e-5)
#   activation: --squared-relu, --openai-gelu (GELU)
#   spread of the initial weights: --init-method-std (0.02)
#   soft-capping of logits or scores, multipliers: no option
MODEL_ARGS=(
  --num-layers 8  # transformer layers
  --hidden-size 256  # width of the residual stream
  --ffn-hidden-size 1024  # width of the MLP
  --num-attention-heads 8  # query heads
  --num-key-value-heads 8  # key/value heads
  --kv-channels 32  # width of one head
  --seq-length 2048  # tokens of one sequence
  --max-position-embeddings 2048  # at least the sequence length
  --no-position-embedding  # no positions
  --normalization layernorm  # norm of every layer
  --untie-embeddings-and-output-weights  # the output layer has its own weights
  --disable-bias-linear  # linear layers have no bias
  --hidden-dropout 0.0  # dropout of the residual stream
  --attention-dropout 0.0  # dropout of the scores
  --no-query-key-layer-scaling  # scores are scaled by the head width only
)
PARALLEL_ARGS=(
  --tensor-model-parallel-size 1  # ranks that split every layer
  --pipeline-model-parallel-size 1  # stages of layers, 1F1B
  --no-pipeline-parallel  # one stage: no pipeline engine
  --zero-stage 0  # as in the JSON
)
TRAINING_ARGS=(
  --micro-batch-size 4  # as in the JSON
  --global-batch-size 64  # as in the JSON
  --train-iters "$TRAIN_ITERS"  # set above
  --bf16  # as in the JSON
  --optimizer adam  # as planned
  --lr 1.0e-4  # PLACEHOLDER for the smoke run: set your own
  --use-flash-attn-v2  # attention kernel: flash-attention 2, the newest that it knows
)
DATA_ARGS=(
  --data-impl mmap  # the format of DATA_PATH, as mock_data.py writes it
  --split '100,0,0'  # no evaluation on mock data
  --eval-iters 0  # no evaluation on mock data
  --tokenizer-type NullTokenizer  # mock data needs no tokenizer
  --vocab-size 32767  # the tokenizer adds one: 32768 tokens
  --make-vocab-size-divisible-by 128  # rows are padded to it times tp
  --log-interval 1  # iteration time on every step
)

deepspeed "${LAUNCH_ARGS[@]}" "$MEGATRON_PATH/pretrain_gpt.py" \
  "${DEEPSPEED_ARGS[@]}" \
  "${MODEL_ARGS[@]}" \
  "${PARALLEL_ARGS[@]}" \
  "${TRAINING_ARGS[@]}" \
  "${DATA_ARGS[@]}" \
  "$@"
