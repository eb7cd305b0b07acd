#!/bin/bash
# One script for several sizes; the size asked for is the default.

SIZE=${SIZE:-7b}
USE_FP8=${USE_FP8:-0}

if [ "$SIZE" = "7b" ]; then
    LAYERS=32
    HIDDEN=4096
    FFN=11008
    HEADS=32
    TP=3
elif [[ $SIZE == "13b" ]]; then
    LAYERS=40
    HIDDEN=5120
    FFN=13824
    HEADS=40
    TP=2
else
    echo "unknown size $SIZE" >&2
    exit 1
fi

PRECISION="--bf16"
if ((USE_FP8)); then
    PRECISION="$PRECISION --fp8-format hybrid --fp8-recipe delayed"
fi

export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 6 --nnodes 1 pretrain_gpt.py \
    --num-layers $LAYERS \
    --hidden-size $HIDDEN \
    --ffn-hidden-size $FFN \
    --num-attention-heads $HEADS \
    --seq-length 4096 \
    --max-position-embeddings 4096 \
    --position-embedding-type rope \
    --normalization RMSNorm \
    --swiglu \
    --disable-bias-linear \
    --attention-dropout 0 --hidden-dropout 0 \
    --tensor-model-parallel-size $TP \
    --sequence-parallel \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --micro-batch-size 1 \
    --global-batch-size 128 \
    --train-iters 100 --lr 1e-4 \
    --cross-entropy-loss-fusion \
    --tokenizer-type NullTokenizer --vocab-size 32000 --mock-data \
    $PRECISION
