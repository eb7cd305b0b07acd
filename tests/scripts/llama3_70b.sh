#!/bin/bash
#SBATCH -J llama3-70b
#SBATCH -N 16
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=1
#SBATCH --time=2-00:00:00

set -eux

nodes=( $(scontrol show hostnames $SLURM_JOB_NODELIST) )
head_node=${nodes[0]}

export CUDA_DEVICE_MAX_CONNECTIONS=1
export OMP_NUM_THREADS=8

MODEL=(
    --num-layers 80
    --hidden-size 8192
    --ffn-hidden-size 28672
    --num-attention-heads 64
    --group-query-attention
    --num-query-groups 8
    --seq-length 8192
    --max-position-embeddings 131072
    --position-embedding-type rope
    --rotary-base 500000
    --use-rope-scaling
    --normalization RMSNorm
    --norm-epsilon 1e-5
    --swiglu
    --untie-embeddings-and-output-weights
    --disable-bias-linear
    --attention-dropout 0.0
    --hidden-dropout 0.0
)
PARALLEL=(
    --tensor-model-parallel-size 4
    --sequence-parallel
    --pipeline-model-parallel-size 4
    --num-virtual-stages-per-pipeline-rank 5
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)
BATCH=(--micro-batch-size 1 --global-batch-size 1024 --train-iters 100000)
OPTIMIZER=(--lr 1.5e-4 --min-lr 1.0e-5 --lr-warmup-iters 2000 --lr-decay-style cosine
    --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --clip-grad 1.0 --bf16)
RECOMPUTE=(--recompute-granularity selective --recompute-modules layernorm mlp)
DATA=(
    --tokenizer-type HuggingFaceTokenizer
    --tokenizer-model meta-llama/Llama-3.1-70B
    --vocab-size 128256
    --make-vocab-size-divisible-by 128
    --data-path /data/llama3/text_document
)

srun torchrun \
    --nnodes $SLURM_NNODES \
    --nproc-per-node 8 \
    --rdzv-id $RANDOM \
    --rdzv-backend c10d \
    --rdzv-endpoint $head_node:29500 \
    pretrain_gpt.py \
    "${MODEL[@]}" "${PARALLEL[@]}" "${BATCH[@]}" "${OPTIMIZER[@]}" "${RECOMPUTE[@]}" "${DATA[@]}" \
    --cross-entropy-loss-fusion \
    --log-interval 1 --log-throughput --eval-iters 0
