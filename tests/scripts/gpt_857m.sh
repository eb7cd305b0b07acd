#!/usr/bin/env bash
# GPT of 857M parameters, one node of eight A100.

GPUS_PER_NODE=8
CHECKPOINT_PATH=/checkpoints/gpt-857m

python -m torch.distributed.run --nproc_per_node=$GPUS_PER_NODE pretrain_gpt.py \
    --tensor-model-parallel-size 1 \
    --pipeline-model-parallel-size 1 \
    --num-layers 24 \
    --hidden-size 1664 \
    --num-attention-heads 16 \
    --seq-length 2048 \
    --max-position-embeddings 2048 \
    --micro-batch-size 4 \
    --global-batch-size 256 \
    --train-samples 146484375 \
    --lr-decay-samples 126953125 \
    --lr-warmup-samples 183105 \
    --lr 2.0e-4 \
    --min-lr 2.0e-5 \
    --lr-decay-style cosine \
    --recompute-granularity full \
    --recompute-method uniform \
    --recompute-num-layers 1 \
    --bf16 \
    --vocab-file gpt2-vocab.json \
    --merge-file gpt2-merges.txt \
    --data-path /data/pile_text_document \
    --save $CHECKPOINT_PATH --save-interval 1000 \
    --eval-iters 40 \
    --log-interval 10
