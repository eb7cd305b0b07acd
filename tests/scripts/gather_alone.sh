#!/bin/bash
# Overlaps the gathering of weights that nobody shards.
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nnodes 4 --nproc_per_node 8 pretrain_gpt.py \
  --num-layers 40 --hidden-size 5120 --num-attention-heads 40 --seq-length 2048 \
  --max-position-embeddings 2048 \
  --tensor-model-parallel-size 4 --sequence-parallel \
  --overlap-grad-reduce \
  --overlap-param-gather \
  --micro-batch-size 4 --global-batch-size 512 \
  --bf16 --lr 1e-4 --train-iters 100 --cross-entropy-loss-fusion \
  --vocab-size 50257 --tokenizer-type NullTokenizer --mock-data
