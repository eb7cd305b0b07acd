#!/bin/bash
# Written for a Megatron-LM of some years ago.
GPUS_PER_NODE=8
MASTER_ADDR=localhost
MASTER_PORT=6000
NNODES=4
NODE_RANK=0

export CUDA_DEVICE_MAX_CONNECTIONS=1

DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK \
                  --master_addr $MASTER_ADDR --master_port $MASTER_PORT"

python -m torch.distributed.launch $DISTRIBUTED_ARGS \
       pretrain_gpt.py \
       --tensor-model-parallel-size 8 \
       --pipeline-model-parallel-size 2 \
       --num-layers 48 \
       --hidden-size 6144 \
       --num-attention-heads 48 \
       --micro-batch-size 2 \
       --global-batch-size 256 \
       --encoder-seq-length 2048 \
       --max-position-embeddings 2048 \
       --train-iters 50000 \
       --lr 1e-4 \
       --use-flash-attn \
       --use-distributed-optimizer \
       --DDP-impl local \
       --checkpoint-activations \
       --vocab-file gpt2-vocab.json \
       --merge-file gpt2-merges.txt \
       --bf16
