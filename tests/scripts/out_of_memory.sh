#!/bin/bash
# 70B on two nodes, hoping for the best.
export CUDA_DEVICE_MAX_CONNECTIONS=1

torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py \
    --num-layers 80 \
    --hidden-size 8192 \
    --ffn-hidden-size 28672 \
    --num-attention-heads 64 \
    --group-query-attention --num-query-groups 8 \
    --seq-length 8192 \
    --max-position-embeddings 8192 \
    --position-embedding-type rope \
    --normalization RMSNorm --swiglu --disable-bias-linear \
    --untie-embeddings-and-output-weights \
    --attention-dropout 0 --hidden-dropout 0 \
    --tensor-model-parallel-size 8 \
    --pipeline-model-parallel-size 2 \
    --sequence-parallel \
    --use-distributed-optimizer \
    --micro-batch-size 2 \
    --global-batch-size 128 \
    --train-iters 1000 --lr 1e-5 --bf16 --cross-entropy-loss-fusion \
    --vocab-size 128256 --tokenizer-type NullTokenizer --mock-data
