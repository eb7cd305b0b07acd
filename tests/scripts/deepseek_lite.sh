#!/usr/bin/env bash
# A small mixture of experts with latent attention, in the manner of DeepSeek-V2-Lite.
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1

NNODES="${SLURM_NNODES:-4}"

mla_args=(
    --multi-latent-attention
    --q-lora-rank 768
    --kv-lora-rank 512
    --qk-head-dim 128
    --qk-pos-emb-head-dim 64
    --v-head-dim 128
    --qk-layernorm
)
moe_args=(
    --num-experts 64
    --moe-ffn-hidden-size 1408
    --moe-shared-expert-intermediate-size 2816
    --moe-layer-freq "([0]*1+[1]*26)"
    --moe-router-topk 6
    --moe-router-pre-softmax
    --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall
    --moe-router-dtype fp32
    --expert-model-parallel-size 8
)
model_args=(
    --num-layers 27
    --hidden-size 2048
    --ffn-hidden-size 10944
    --num-attention-heads 16
    --kv-channels 128
    --seq-length 4096
    --max-position-embeddings 4096
    --position-embedding-type rope
    --normalization RMSNorm
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0
    --hidden-dropout 0
    --vocab-size 102400
    --attention-backend fused
)
run_args=(
    --tensor-model-parallel-size 1
    --pipeline-model-parallel-size 1
    --micro-batch-size 2
    --global-batch-size 1024
    --train-iters 2000
    --lr 4.2e-4
    --bf16
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
    --cross-entropy-loss-fusion
    --mock-data
    --tokenizer-type NullTokenizer
)

torchrun --nnodes "$NNODES" --nproc-per-node 8 --node-rank "${SLURM_NODEID:-0}" \
    --master-addr "${MASTER_ADDR:-localhost}" \
    pretrain_gpt.py "${model_args[@]}" "${mla_args[@]}" "${moe_args[@]}" "${run_args[@]}" "$@"
