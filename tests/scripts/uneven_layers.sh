#!/bin/bash
# 94 layers over four stages.
export CUDA_DEVICE_MAX_CONNECTIONS=1
NNODES=16

torchrun --nnodes=$NNODES --nproc-per-node=8 --node-rank=$RANK --master-addr=$MASTER \
  pretrain_gpt.py \
  --num-layers 94 \
  --hidden-size 8192 \
  --num-attention-heads 64 \
  --seq-length 4096 \
  --max-position-embeddings 4096 \
  --tensor-model-parallel-size 8 \
  --sequence-parallel \
  --pipeline-model-parallel-size 4 \
  --use-distributed-optimizer \
  --overlap-grad-reduce \
  --overlap-param-gather \
  --micro-batch-size 1 \
  --global-batch-size 512 \
  --train-iters 10000 \
  --lr 1e-4 \
  --bf16 \
  --cross-entropy-loss-fusion \
  --mock-data --tokenizer-type NullTokenizer --vocab-size 50257
