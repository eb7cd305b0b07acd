#!/bin/bash
# GPT of 345M parameters on the eight accelerators of one node.
set -euo pipefail

DATA_PATH="${1:?prefix of the data set}"
CHECKPOINT_PATH="${2:-checkpoints/gpt-345m}"

GPT_ARGS="
    --num-layers 24 \
    --hidden-size 1024 \
    --num-attention-heads 16 \
    --seq-length 1024 \
    --max-position-embeddings 1024 \
    --micro-batch-size 8 \
    --global-batch-size 512 \
    --lr 0.00015 \
    --train-iters 500000 \
    --lr-decay-iters 320000 \
    --lr-decay-style cosine \
    --min-lr 1.5e-3 \
    --weight-decay 1e-2 \
    --lr-warmup-iters 600000 \
    --clip-grad 1.0 \
    --cross-entropy-loss-fusion \
    --use-distributed-optimizer \
    --overlap-grad-reduce \
    --overlap-param-gather \
    --bf16
"

DATA_ARGS="
    --data-path $DATA_PATH \
    --vocab-file gpt2-vocab.json \
    --merge-file gpt2-merges.txt \
    --split 949,50,1
"

OUTPUT_ARGS="
    --log-interval 100 \
    --save-interval 10000 \
    --eval-interval 1000 \
    --eval-iters 10
"

torchrun --standalone --nproc_per_node 8 pretrain_gpt.py \
    $GPT_ARGS \
    $DATA_ARGS \
    $OUTPUT_ARGS \
    --distributed-backend nccl \
    --save "$CHECKPOINT_PATH" \
    --load "$CHECKPOINT_PATH"
