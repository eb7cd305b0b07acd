#!/usr/bin/env bash
# Megatron-LM (core 0.18 to main (0.20); the flags exist since 0.16)
# llama on 2x8xh100: 16 accelerators = tp 2 x cp 4 x pp 1 x dp 2
# train_batch 64 = micro_batch 1 * accumulation 32 * dp 2
# Needs data: DATA_PATH and TOKENIZER_MODEL; to train, a learning rate and TRAIN_ITERS too.
set -euo pipefail

# One call on each of the 2 nodes.
NNODES="${NNODES:-2}"
NODE_RANK="${NODE_RANK:?set it to the number of this node, 0 to 1}"
MASTER_ADDR="${MASTER_ADDR:?set it to the address of node 0, the same on every node}"
MASTER_PORT="${MASTER_PORT:-29500}"
MEGATRON_PATH="${MEGATRON_PATH:-.}"  # a checkout of Megatron-LM
TRAIN_ITERS="${TRAIN_ITERS:-20}"  # a smoke run: iterations of 131072 tokens
DATA_PATH="${DATA_PATH:-samples.jsonl}"  # conversations, packed to 2048 tokens; planned: 2048 tokens in the mean, 2048 at most
TOKENIZER_MODEL="${TOKENIZER_MODEL:-tokenizer}"  # a folder or a name of Hugging Face
export CUDA_DEVICE_MAX_CONNECTIONS=1  # orders traffic before the kernels that hide it (tp, cp)
LAUNCH_ARGS=(
  --nnodes "$NNODES"
  --nproc_per_node 8
  --node_rank "$NODE_RANK"
  --master_addr "$MASTER_ADDR"
  --master_port "$MASTER_PORT"
)
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
  --num-layers 16  # transformer layers
  --hidden-size 512  # width of the residual stream
  --ffn-hidden-size 1792  # width of the dense MLP
  --num-attention-heads 16  # query heads
  --kv-channels 32  # width of one head
  --group-query-attention  # without it the next flag is ignored
  --num-query-groups 4  # key/value heads
  --seq-length 2048  # tokens of one sequence
  --max-position-embeddings 2048  # at least the sequence length
  --position-embedding-type rope  # how tokens know their place
  --normalization RMSNorm  # norm of every layer
  --swiglu  # gated MLP: two input projections
  --untie-embeddings-and-output-weights  # the output layer has its own weights
  --disable-bias-linear  # linear layers have no bias
  --hidden-dropout 0.0  # dropout of the residual stream
  --attention-dropout 0.0  # dropout of the scores
)
PARALLEL_ARGS=(
  --tensor-model-parallel-size 2  # ranks that split every layer
  --pipeline-model-parallel-size 1  # stages of layers
  --context-parallel-size 4  # ranks that split the sequence
  --sequence-parallel  # norms and dropout split over tp
  --cp-comm-type p2p  # how keys and values travel
  --hybrid-context-parallel  # each sample on as few ranks as its length needs
  --max-seqlen-per-dp-cp-rank 512  # longer samples take 2, 4, ... ranks
  --calculate-per-token-loss  # ranks see unequal numbers of tokens
  --dataloader-type single  # the only one that deals samples
  --use-distributed-optimizer  # optimizer states sharded (ZeRO 1)
)
BATCH_ARGS=(
  --micro-batch-size 1  # sequences per pass and rank
  --global-batch-size 64  # = micro batch 1 x accumulation 32 x dp 2
  --train-iters "$TRAIN_ITERS"  # set above
)
PRECISION_ARGS=(
  --bf16  # bf16 weights
  --accumulate-allreduce-grads-in-fp32  # gradients kept and reduced in fp32
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
  --sft  # packed samples; there is no mock data of them
  --data-path "$DATA_PATH"  # set above
  --tokenizer-type SFTTokenizer  # knows conversations
  --tokenizer-model "$TOKENIZER_MODEL"  # set above
  --make-vocab-size-divisible-by 128  # rows are padded to a multiple of 128 x tp 2
  --padded-vocab-size 32000  # rows of the embedding, as planned
  --eval-iters 0  # no evaluation
  --log-interval 1  # iteration time on every step
  --log-throughput  # TFLOP/s per accelerator
)

torchrun "${LAUNCH_ARGS[@]}" "$MEGATRON_PATH/pretrain_gpt.py" \
  "${MODEL_ARGS[@]}" \
  "${PARALLEL_ARGS[@]}" \
  "${BATCH_ARGS[@]}" \
  "${PRECISION_ARGS[@]}" \
  "${KERNEL_ARGS[@]}" \
  "${OVERLAP_ARGS[@]}" \
  "${OPTIMIZER_ARGS[@]}" \
  "${DATA_ARGS[@]}" \
  "$@"
