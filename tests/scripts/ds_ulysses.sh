#!/bin/bash
# Long sequences split over heads (Ulysses).
SP=4
SEQ=32768
CONFIG=ds_ulysses.json

deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py \
    --ds-sequence-parallel-size $SP \
    --tensor-model-parallel-size 1 \
    --no-pipeline-parallel \
    --num-layers 32 \
    --hidden-size 4096 \
    --num-attention-heads 32 \
    --seq-length $SEQ \
    --max-position-embeddings $SEQ \
    --micro-batch-size 1 \
    --global-batch-size 64 \
    --use-rotary-position-embeddings \
    --normalization rmsnorm \
    --swiglu --ffn-hidden-size 11008 \
    --disable-bias-linear \
    --untie-embeddings-and-output-weights \
    --attention-dropout 0 --hidden-dropout 0 \
    --train-iters 1000 --lr 1e-4 \
    --bf16 \
    --use-flash-attn-v2 \
    --no-query-key-layer-scaling \
    --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt \
    --data-path /data/long \
    --deepspeed --deepspeed_config $CONFIG --zero-stage 3
