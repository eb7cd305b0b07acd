#!/bin/bash
# Layers dealt out by hand, and everything computed twice to make them fit.
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nnodes 8 --nproc_per_node 8 pretrain_gpt.py \
  --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \
  --group-query-attention --num-query-groups 8 \
  --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope \
  --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights \
  --attention-dropout 0 --hidden-dropout 0 \
  --tensor-model-parallel-size 4 --sequence-parallel \
  --pipeline-model-parallel-size 4 \
  --decoder-first-pipeline-num-layers 14 \
  --decoder-last-pipeline-num-layers 14 \
  --recompute-granularity full --recompute-method block \
  --recompute-num-layers 26 \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
  --micro-batch-size 2 --global-batch-size 1024 \
  --bf16 --lr 1e-4 --train-iters 100 --cross-entropy-loss-fusion \
  --vocab-size 128256 --tokenizer-type NullTokenizer --mock-data
