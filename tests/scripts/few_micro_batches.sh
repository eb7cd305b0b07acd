#!/bin/bash
# A deep pipeline and a small batch.
export CUDA_DEVICE_MAX_CONNECTIONS=1
PP=8
MBS=2
torchrun --nnodes 8 --nproc_per_node 8 pretrain_gpt.py \
  --num-layers 64 --hidden-size 6144 --num-attention-heads 48 --seq-length 2048 \
  --max-position-embeddings 2048 \
  --tensor-model-parallel-size 4 --sequence-parallel \
  --pipeline-model-parallel-size $PP \
  --use-distributed-optimizer --overlap-param-gather --overlap-grad-reduce \
  --micro-batch-size $MBS \
  --global-batch-size 64 \
  --bf16 --lr 1e-4 --train-iters 100 --cross-entropy-loss-fusion \
  --vocab-size 50257 --tokenizer-type NullTokenizer --mock-data
