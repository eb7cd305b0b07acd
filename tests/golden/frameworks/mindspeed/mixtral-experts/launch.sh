#!/usr/bin/env bash
# MindSpeed (Megatron-LM core_v0.12.1 with MindSpeed of July 2026 (028de58))
# mixtral on 2x8xascend-910b3: 16 accelerators = tp 2 x cp 1 x pp 1 x dp 8
# train_batch 64 = micro_batch 1 * accumulation 8 * dp 8
# A smoke run on MOCK DATA: to train, give it data, a learning rate and TRAIN_ITERS.
set -euo pipefail

# One call on each of the 2 nodes.
NNODES="${NNODES:-2}"
NODE_RANK="${NODE_RANK:?set it to the number of this node, 0 to 1}"
MASTER_ADDR="${MASTER_ADDR:?set it to the address of node 0, the same on every node}"
MASTER_PORT="${MASTER_PORT:-29500}"
BUNDLE="${BASH_SOURCE[0]%/*}"
[ -d "$BUNDLE" ] || BUNDLE=.
export MEGATRON_PATH="${MEGATRON_PATH:-.}"  # a checkout of core_v0.12.1
TRAIN_ITERS="${TRAIN_ITERS:-20}"  # a smoke run: iterations of 131072 tokens
export CUDA_DEVICE_MAX_CONNECTIONS=1  # orders traffic before the kernels that hide it (tp, cp)
export HCCL_CONNECT_TIMEOUT=1200  # seconds that nodes may start apart
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True  # fewer gaps in memory
export TASK_QUEUE_ENABLE=2  # kernels are queued from a thread of their own
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
#   layers without rotation: no option
#   rope scaling: --use-rope-scaling, --rope-scaling-factor: Llama 3's (none)
#   activation: SwiGLU, no other gate
#   routed scaling factor: --moe-router-topk-scaling-factor (none)
#   scores of the router: --moe-router-score-function, --moe-router-pre-softmax (softmax over the chosen experts)
#   balancing loss: --moe-router-load-balancing-type (aux_loss), --moe-aux-loss-coeff (0)
#   spread of the initial weights: --init-method-std (0.02)
#   soft-capping of logits or scores, multipliers: no option
MODEL_ARGS=(
  --num-layers 8  # transformer layers
  --hidden-size 512  # width of the residual stream
  --ffn-hidden-size 1792  # width of the dense MLP
  --num-attention-heads 16  # query heads
  --kv-channels 32  # width of one head
  --group-query-attention  # without it the next flag is ignored
  --num-query-groups 8  # key/value heads
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
MOE_ARGS=(
  --num-experts 8  # routed experts per layer
  --moe-ffn-hidden-size 1792  # width of one expert
  --moe-router-topk 2  # experts per token
  --moe-grouped-gemm  # the experts of a rank in one launch
  --moe-router-dtype fp32  # stable routing; deepep takes nothing else
  --moe-token-dispatcher-type alltoall  # tokens travel by alltoall
  --expert-model-parallel-size 4  # ranks that share the experts
  --expert-tensor-parallel-size 2  # ranks that split one expert
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
  --train-iters "$TRAIN_ITERS"  # set above
)
PRECISION_ARGS=(
  --bf16  # bf16 weights
  --accumulate-allreduce-grads-in-fp32  # gradients kept and reduced in fp32
)
RECOMPUTE_ARGS=(
  --recompute-granularity full  # activations computed again
  --recompute-method block  # which layers
  --recompute-num-layers 1  # layers per model chunk
)
KERNEL_ARGS=(
  --use-flash-attn  # the NPU's fused attention
  --use-fused-rmsnorm  # the norm in one kernel
  --use-fused-swiglu  # the gate in one kernel
  --use-fused-rotary-pos-emb  # rotation in one kernel
  --no-gradient-accumulation-fusion  # its fused accumulation must be compiled on the machine
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
  --mock-data  # MOCK DATA: nothing to learn; to train, --data-path instead
  --tokenizer-type NullTokenizer  # mock data needs no tokenizer
  --vocab-size 31999  # NullTokenizer adds one id: 32000 tokens
  --make-vocab-size-divisible-by 128  # rows are padded to a multiple of 128 x tp 2
  --eval-iters 0  # no evaluation on mock data
  --log-interval 1  # iteration time on every step
  --log-throughput  # TFLOP/s per accelerator
)

torchrun "${LAUNCH_ARGS[@]}" "$BUNDLE/pretrain_gpt.py" \
  "${MODEL_ARGS[@]}" \
  "${MOE_ARGS[@]}" \
  "${PARALLEL_ARGS[@]}" \
  "${BATCH_ARGS[@]}" \
  "${PRECISION_ARGS[@]}" \
  "${RECOMPUTE_ARGS[@]}" \
  "${KERNEL_ARGS[@]}" \
  "${OVERLAP_ARGS[@]}" \
  "${OPTIMIZER_ARGS[@]}" \
  "${DATA_ARGS[@]}" \
  "$@"
