#!/bin/bash
# Long sequences over two nodes each, though one would hold them.
export CUDA_DEVICE_MAX_CONNECTIONS=1
CP=16
torchrun --nnodes 8 --nproc_per_node 8 pretrain_gpt.py \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 \
  --seq-length 32768 --max-position-embeddings 32768 --position-embedding-type rope \
  --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights \
  --attention-dropout 0 --hidden-dropout 0 \
  --tensor-model-parallel-size 2 --sequence-parallel \
  --context-parallel-size $CP \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
  --micro-batch-size 1 --global-batch-size 64 \
  --bf16 --lr 1e-4 --train-iters 100 --cross-entropy-loss-fusion \
  --grad-reduce-in-bf16 \
  --vocab-size 128256 --tokenizer-type NullTokenizer --mock-data
