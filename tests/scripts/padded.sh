#!/bin/bash
# A small model that carries a large one's habits.
export CUDA_DEVICE_MAX_CONNECTIONS=8
torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py \
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \
  --seq-length 2048 --max-position-embeddings 2048 \
  --tensor-model-parallel-size 2 --sequence-parallel \
  --make-vocab-size-divisible-by 16384 \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
  --use-precision-aware-optimizer \
  --optimizer-cpu-offload --optimizer-offload-fraction 1.0 \
  --micro-batch-size 8 --global-batch-size 256 \
  --bf16 --lr 1e-4 --train-iters 100 --cross-entropy-loss-fusion \
  --vocab-size 50257 --tokenizer-type NullTokenizer --mock-data
