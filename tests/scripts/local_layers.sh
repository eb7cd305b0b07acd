#!/bin/bash
# A GPT of 13B on layers of its own kernels: eager attention, and fp8 that they do not have.
export CUDA_DEVICE_MAX_CONNECTIONS=1

GPT=(
  --num-layers 40 --hidden-size 5120 --num-attention-heads 40 --ffn-hidden-size 13824
  --seq-length 4096 --max-position-embeddings 4096 --swiglu --normalization RMSNorm
  --position-embedding-type rope --disable-bias-linear --untie-embeddings-and-output-weights
  --tokenizer-type NullTokenizer --vocab-size 32000 --attention-dropout 0 --hidden-dropout 0
)
torchrun --nnodes 4 --nproc_per_node 8 pretrain_gpt.py "${GPT[@]}" \
  --transformer-impl local \
  --fp8-format hybrid \
  --tensor-model-parallel-size 4 --sequence-parallel \
  --pipeline-model-parallel-size 8 \
  --micro-batch-size 1 --global-batch-size 16 --bf16 \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --use-mcore-models \
  --train-iters 100 --lr 1e-4 --mock-data
