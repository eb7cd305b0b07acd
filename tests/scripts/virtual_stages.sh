#!/bin/bash
# Interleaved stages with a number of layers that does not go up.
export CUDA_DEVICE_MAX_CONNECTIONS=1

PARALLEL="--tensor-model-parallel-size 8 --sequence-parallel \
 --pipeline-model-parallel-size 4 \
 --num-virtual-stages-per-pipeline-rank 3 \
 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
MODEL="--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --ffn-hidden-size 28672 \
 --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm \
 --position-embedding-type rope --disable-bias-linear --untie-embeddings-and-output-weights \
 --attention-dropout 0 --hidden-dropout 0 --seq-length 4096 --max-position-embeddings 4096"

torchrun --nnodes 8 --nproc_per_node 8 pretrain_gpt.py $MODEL $PARALLEL \
 --micro-batch-size 1 --global-batch-size 512 --train-iters 1000 --lr 1e-4 --bf16 \
 --cross-entropy-loss-fusion \
 --vocab-size 128256 --tokenizer-type NullTokenizer --mock-data
