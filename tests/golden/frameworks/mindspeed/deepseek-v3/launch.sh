#!/usr/bin/env bash
# MindSpeed (Megatron-LM core_v0.12.1 with MindSpeed of July 2026 (028de58))
# deepseek-v3 on 2x8xascend-910b3: 16 accelerators = tp 1 x cp 1 x pp 2 x dp 8
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
#   rope scaling: YaRN's --rotary-scaling-factor (1.0), --mscale (1.0), --mscale-all-dim (1.0)
#   activation: SwiGLU, no other gate
#   routed scaling factor: --moe-router-topk-scaling-factor (none)
#   balancing loss: --moe-router-load-balancing-type (aux_loss), --moe-aux-loss-coeff (0)
#   weight of the prediction loss: --mtp-loss-scaling-factor (0.1)
#   spread of the initial weights: --init-method-std (0.02)
#   soft-capping of logits or scores, multipliers: no option
MODEL_ARGS=(
  --num-layers 13  # transformer layers
  --hidden-size 512  # width of the residual stream
  --ffn-hidden-size 1536  # width of the dense MLP
  --num-attention-heads 16  # query heads
  --kv-channels 32  # width of one head
  --seq-length 2048  # tokens of one sequence
  --max-position-embeddings 2048  # at least the sequence length
  --position-embedding-type rope  # how tokens know their place
  --normalization RMSNorm  # norm of every layer
  --swiglu  # gated MLP: two input projections
  --untie-embeddings-and-output-weights  # the output layer has its own weights
  --disable-bias-linear  # linear layers have no bias
  --qk-layernorm  # norms on queries and keys (MLA: on the latents)
  --hidden-dropout 0.0  # dropout of the residual stream
  --attention-dropout 0.0  # dropout of the scores
  --multi-latent-attention  # keys and values from a latent
  --q-lora-rank 96  # latent width of queries
  --kv-lora-rank 64  # latent width of keys and values
  --qk-head-dim 32  # head width without positions
  --qk-pos-emb-head-dim 16  # head width with positions
  --v-head-dim 32  # head width of values
  --mtp-num-layers 1  # extra prediction layers
)
MOE_ARGS=(
  --num-experts 16  # routed experts per layer
  --moe-ffn-hidden-size 256  # width of one expert
  --moe-router-topk 4  # experts per token
  --moe-layer-freq '[0]*1+[1]*12'  # 1: a layer of experts, 0: a dense one
  --moe-shared-expert-intermediate-size 256  # width of all shared experts together
  --moe-router-num-groups 4  # groups of experts
  --moe-router-group-topk 2  # groups that one token may use
  --moe-router-score-function sigmoid  # the balancing bias needs it
  --moe-router-enable-expert-bias  # balances without an auxiliary loss
  --moe-grouped-gemm  # the experts of a rank in one launch
  --moe-router-dtype fp32  # stable routing; deepep takes nothing else
  --moe-token-dispatcher-type alltoall  # tokens travel by alltoall
  --expert-model-parallel-size 8  # ranks that share the experts
  --expert-tensor-parallel-size 1  # ranks that split one expert
)
PARALLEL_ARGS=(
  --tensor-model-parallel-size 1  # ranks that split every layer
  --pipeline-model-parallel-size 2  # stages of layers
  --context-parallel-size 1  # ranks that split the sequence
  --decoder-first-pipeline-num-layers 6  # layers of the first stage
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
  --recompute-granularity selective  # activations computed again
  --recompute-modules mla_up_proj moe_act  # only in these modules
)
KERNEL_ARGS=(
  --use-flash-attn  # the NPU's fused attention
  --use-fused-rmsnorm  # the norm in one kernel
  --use-fused-swiglu  # the gate in one kernel
  --no-rope-fusion  # latent attention has no fused rotation
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
  --vocab-size 129279  # NullTokenizer adds one id: 129280 tokens
  --make-vocab-size-divisible-by 128  # rows are padded to a multiple of 128 x tp 1
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
