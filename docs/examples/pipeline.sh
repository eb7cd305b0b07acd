#!/usr/bin/env bash
# Two pipeline stages, little tensor parallelism.
torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm \
  --position-embedding-type rope --untie-embeddings-and-output-weights --disable-bias-linear \
  --vocab-size 128256 --seq-length 8192 --max-position-embeddings 8192 \
  --global-batch-size 256 --micro-batch-size 1 --bf16 --use-flash-attn \
  --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2 \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
