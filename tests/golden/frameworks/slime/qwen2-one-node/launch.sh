#!/usr/bin/env bash
# slime (main of August 2026 (624b824) on Megatron-LM core 0.16 to main)
# qwen2 on 2x8xh100: 16 accelerators = tp 2 x cp 1 x pp 1 x dp 8
# train_batch 64 = micro_batch 1 * accumulation 8 * dp 8
# Needs a checkpoint and data: HF_CHECKPOINT and PROMPT_DATA.
set -euo pipefail

# One call on each of the 2 nodes.
NNODES="${NNODES:-2}"
NODE_RANK="${NODE_RANK:?set it to the number of this node, 0 to 1}"
MASTER_ADDR="${MASTER_ADDR:?set it to the address of node 0, the same on every node}"
MASTER_PORT="${MASTER_PORT:-29500}"
SLIME_PATH="${SLIME_PATH:-.}"  # a checkout of slime
MEGATRON_PATH="${MEGATRON_PATH:-/root/Megatron-LM}"  # a checkout of Megatron-LM
HF_CHECKPOINT="${HF_CHECKPOINT:-./model}"  # the model from Hugging Face, of these very sizes
PROMPT_DATA="${PROMPT_DATA:-./data.jsonl}"  # conversations, under the key messages

export CUDA_DEVICE_MAX_CONNECTIONS=1  # orders traffic before the kernels that hide it (tp, cp)
# Not part of the plan and left at the default: set by hand what the model's config.json
# says otherwise.
#   norm epsilon: --norm-epsilon (1e-5)
#   rotary base: --rotary-base (10000)
#   share of a head that rotates: --rotary-percent (1.0)
#   layers without rotation: --no-rope-freq (none)
#   rope scaling: --use-rope-scaling, --rope-scaling-factor: Llama 3's (none)
#   activation: --quick-geglu for --swiglu (SwiGLU)
#   spread of the initial weights: --init-method-std (0.02)
#   soft-capping of logits or scores, multipliers: no option
MODEL_ARGS=(
  --num-layers 12  # transformer layers
  --hidden-size 384  # width of the residual stream
  --ffn-hidden-size 1024  # width of the dense MLP
  --num-attention-heads 12  # query heads
  --kv-channels 32  # width of one head
  --group-query-attention  # without it the next flag is ignored
  --num-query-groups 4  # key/value heads
  --seq-length 2048  # tokens of one sequence
  --max-position-embeddings 2048  # at least the sequence length
  --position-embedding-type rope  # how tokens know their place
  --normalization RMSNorm  # norm of every layer
  --swiglu  # gated MLP: two input projections
  --disable-bias-linear  # linear layers have no bias
  --add-qkv-bias  # except the query/key/value projection
  --hidden-dropout 0.0  # dropout of the residual stream
  --attention-dropout 0.0  # dropout of the scores
)
PARALLEL_ARGS=(
  --tensor-model-parallel-size 2  # ranks that split every layer
  --pipeline-model-parallel-size 1  # stages of layers
  --context-parallel-size 1  # ranks that split the sequence
  --sequence-parallel  # norms and dropout split over tp
  --use-distributed-optimizer  # optimizer states sharded (ZeRO 1)
)
BATCH_ARGS=(
  --micro-batch-size 1  # sequences per pass and rank
  --global-batch-size 64  # = micro batch 1 x accumulation 8 x dp 8
)
PRECISION_ARGS=(
  --bf16  # bf16 weights
  --accumulate-allreduce-grads-in-fp32  # gradients kept and reduced in fp32
)
RECOMPUTE_ARGS=(
  --recompute-granularity full  # activations computed again
  --recompute-method block  # which layers
  --recompute-num-layers 8  # layers per model chunk
)
KERNEL_ARGS=(
  --attention-backend flash  # attention kernel
  --cross-entropy-loss-fusion  # compiled kernels, one reduction less; fp32 exponentials stay, 4 bytes per logit
  --cross-entropy-fusion-impl native  # te is disabled, as unstable
)
OVERLAP_ARGS=(
  --overlap-grad-reduce  # gradients reduced during the backward pass
  --overlap-param-gather  # weights gathered during the forward pass
)
OPTIMIZER_ARGS=(
  --optimizer adam  # as planned
  --lr 1.0e-4  # PLACEHOLDER for the smoke run: set your own
)
DATA_ARGS=(
  --vocab-size 151936  # tokens of the vocabulary
  --make-vocab-size-divisible-by 128  # rows are padded to a multiple of 128 x tp 2
  --padded-vocab-size 152064  # rows of the embedding, as planned
)
ROLLOUT_ARGS=(
  --rollout-function-path slime.rollout.sft_rollout.generate_rollout  # samples are taken, not generated
  --loss-type sft_loss  # the next token's
  --calculate-per-token-loss  # as pre-training has it
  --disable-compute-advantages-and-returns  # there are no rewards
  --debug-train-only  # no engines that generate
  --input-key messages  # conversations
  --rollout-batch-size 64  # samples of one step
  --num-rollout 20  # steps: a smoke run
)

if [ "$NODE_RANK" != 0 ]; then
  exec ray start --address "$MASTER_ADDR:6379" --num-gpus 8 --block
fi
ray start --head --node-ip-address "$MASTER_ADDR" --port 6379 --num-gpus 8 \
  --dashboard-port 8265 --disable-usage-stats
ray job submit --address http://127.0.0.1:8265 \
  --runtime-env-json "{\"env_vars\": {\"PYTHONPATH\": \"$MEGATRON_PATH\", \"CUDA_DEVICE_MAX_CONNECTIONS\": \"1\"}}" \
  -- python3 "$SLIME_PATH/train_async.py" \
  --actor-num-nodes "$NNODES" \
  --actor-num-gpus-per-node 8 \
  --hf-checkpoint "$HF_CHECKPOINT" \
  --prompt-data "$PROMPT_DATA" \
  "${MODEL_ARGS[@]}" \
  "${PARALLEL_ARGS[@]}" \
  "${BATCH_ARGS[@]}" \
  "${PRECISION_ARGS[@]}" \
  "${RECOMPUTE_ARGS[@]}" \
  "${KERNEL_ARGS[@]}" \
  "${OVERLAP_ARGS[@]}" \
  "${OPTIMIZER_ARGS[@]}" \
  "${DATA_ARGS[@]}" \
  "${ROLLOUT_ARGS[@]}" \
  "$@"
