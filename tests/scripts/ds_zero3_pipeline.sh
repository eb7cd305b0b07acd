#!/bin/bash
# ZeRO-3 and a pipeline: one of them too many.
export CUDA_DEVICE_MAX_CONNECTIONS=1
deepspeed --num_nodes 4 --num_gpus 8 pretrain_gpt.py \
    --tensor-model-parallel-size 4 --sequence-parallel \
    --pipeline-model-parallel-size 2 \
    --num-layers 40 --hidden-size 5120 --num-attention-heads 40 \
    --seq-length 2048 --max-position-embeddings 2048 \
    --attention-dropout 0 --hidden-dropout 0 \
    --micro-batch-size 1 --global-batch-size 256 \
    --train-iters 1000 --lr 1e-4 --bf16 --use-flash-attn-v2 \
    --no-query-key-layer-scaling \
    --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --data-path /data/text \
    --deepspeed --deepspeed_config ds_zero3_pipeline.json --zero-stage 3
