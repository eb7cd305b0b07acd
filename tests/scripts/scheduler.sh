#!/bin/bash
# Sizes come from the scheduler; the batch does not follow them.
set -e

: "${NNODES:=$SLURM_NNODES}"
: "${GPUS:=8}"
WORLD=$((NNODES * GPUS))
TP=2
PP=2
DP=$((WORLD / TP / PP))
echo "world $WORLD, data parallel $DP"

export CUDA_DEVICE_MAX_CONNECTIONS=1

ARGS=(
  --num-layers 40
  --hidden-size 5120
  --num-attention-heads 40
  --seq-length 4096
  --max-position-embeddings 4096
  --position-embedding-type rope
  --normalization RMSNorm
  --swiglu
  --ffn-hidden-size 13824
  --disable-bias-linear
  --untie-embeddings-and-output-weights
  --attention-dropout 0
  --hidden-dropout 0
  --tensor-model-parallel-size $TP
  --pipeline-model-parallel-size $PP
  --sequence-parallel
  --use-distributed-optimizer
  --overlap-grad-reduce
  --overlap-param-gather
  --micro-batch-size 1
  --global-batch-size 500
  --train-iters 1000
  --lr 3e-4
  --bf16
  --cross-entropy-loss-fusion
  --tokenizer-type Llama2Tokenizer
  --tokenizer-model "$DATA/tokenizer.model"
  --data-path "$DATA/text"
)
torchrun --nnodes "$NNODES" --nproc_per_node "$GPUS" --rdzv_backend c10d \
  --rdzv_endpoint "$MASTER_ADDR:29400" pretrain_gpt.py "${ARGS[@]}"
