#!/usr/bin/env bash
# Megatron-DeepSpeed (DeepSpeed 0.16 to 0.19; Megatron-DeepSpeed of July 2025 (4efb479))
# llama on 2x8xh100: 16 accelerators = tp 2 x cp 1 x pp 1 x dp 8
# train_batch 64 = micro_batch 1 * accumulation 8 * dp 8
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
export CUDA_DEVICE_MAX_CONNECTIONS=1  # sequence parallelism demands it
export DS_ENV_FILE="$BUNDLE/deepspeed_env"  # carries it to every node
if [ ! -f "$DATA_PATH.idx" ]; then
  PYTHONPATH="$MEGATRON_PATH" python3 "$BUNDLE/mock_data.py" "$DATA_PATH" 32000 2049
fi

LAUNCH_ARGS=(
  --hostfile "$HOSTFILE"
  --num_nodes 2
  --num_gpus 8
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
#   rotary base: --rotary-position-embeddings-theta (10000)
#   share of a head that rotates: --rotary-percent (1.0)
#   rope scaling: no option
#   activation: SwiGLU, no other gate
#   spread of the initial weights: --init-method-std (0.02)
#   soft-capping of logits or scores, multipliers: no option
MODEL_ARGS=(
  --num-layers 16  # transformer layers
  --hidden-size 512  # width of the residual stream
  --ffn-hidden-size 1792  # width of the MLP
  --num-attention-heads 16  # query heads
  --num-key-value-heads 4  # key/value heads
  --kv-channels 32  # width of one head
  --seq-length 2048  # tokens of one sequence
  --max-position-embeddings 2048  # at least the sequence length
  --use-rotary-position-embeddings  # rotary positions
  --normalization rmsnorm  # norm of every layer
  --swiglu  # gated MLP: two input projections
  --untie-embeddings-and-output-weights  # the output layer has its own weights
  --disable-bias-linear  # linear layers have no bias
  --hidden-dropout 0.0  # dropout of the residual stream
  --attention-dropout 0.0  # dropout of the scores
  --no-query-key-layer-scaling  # scores are scaled by the head width only
)
PARALLEL_ARGS=(
  --tensor-model-parallel-size 2  # ranks that split every layer
  --pipeline-model-parallel-size 1  # stages of layers, 1F1B
  --no-pipeline-parallel  # one stage: no pipeline engine
  --sequence-parallel  # norms and dropout split over tp
  --zero-stage 3  # as in the JSON
)
TRAINING_ARGS=(
  --micro-batch-size 1  # as in the JSON
  --global-batch-size 64  # as in the JSON
  --train-iters "$TRAIN_ITERS"  # set above
  --fp16  # as in the JSON
  --optimizer adam  # as planned
  --cpu-optimizer  # DeepSpeed's Adam for host memory
  --lr 1.0e-4  # PLACEHOLDER for the smoke run: set your own
  --use-flash-attn-v2  # attention kernel: flash-attention 2, the newest that it knows
  --recompute-granularity full  # activations computed again
  --deepspeed-activation-checkpointing  # by DeepSpeed's checkpoint function
  --recompute-method uniform  # which layers
  --recompute-num-layers 2  # layers in one go
  --checkpoint-num-layers 2  # the same without the pipeline engine, which alone reads the flag before
)
DATA_ARGS=(
  --data-impl mmap  # the format of DATA_PATH, as mock_data.py writes it
  --split '100,0,0'  # no evaluation on mock data
  --eval-iters 0  # no evaluation on mock data
  --tokenizer-type NullTokenizer  # mock data needs no tokenizer
  --vocab-size 31999  # the tokenizer adds one: 32000 tokens
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
