#!/bin/bash
# Everything right but the order of things: nothing overlaps, and expert parallelism spans nodes.
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nnodes 8 --nproc_per_node 8 pretrain_gpt.py \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 \
  --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope \
  --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights \
  --attention-dropout 0 --hidden-dropout 0 \
  --num-experts 64 --moe-router-topk 6 --moe-ffn-hidden-size 1408 --moe-grouped-gemm --moe-token-dispatcher-type alltoall \
  --expert-model-parallel-size 16 --expert-tensor-parallel-size 1 \
  --tensor-model-parallel-size 2 --sequence-parallel \
  --pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 4 \
  --use-distributed-optimizer \
  --micro-batch-size 1 --global-batch-size 512 \
  --bf16 --lr 1e-4 --train-iters 100 --cross-entropy-loss-fusion \
  --vocab-size 32000 --tokenizer-type NullTokenizer --mock-data
