#!/bin/bash
# Llama 3.1 8B on sixteen Ascend NPUs of two nodes, in the manner of MindSpeed-LLM's examples.

export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True

NPUS_PER_NODE=8
NNODES=2
TP=4
PP=2

DISTRIBUTED_ARGS="
    --nproc_per_node $NPUS_PER_NODE
    --nnodes $NNODES
    --node_rank ${NODE_RANK:-0}
    --master_addr ${MASTER_ADDR:-localhost}
    --master_port 6000
"

MODEL_ARGS="
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --rotary-base 500000
    --normalization RMSNorm
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --padded-vocab-size 128256
    --tokenizer-type PretrainedFromHF
    --tokenizer-name-or-path ./llama-3.1-8b
"

RUN_ARGS="
    --use-mcore-models
    --tensor-model-parallel-size ${TP}
    --pipeline-model-parallel-size ${PP}
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
    --use-flash-attn
    --use-fused-rmsnorm
    --use-fused-swiglu
    --use-fused-rotary-pos-emb
    --micro-batch-size 1
    --global-batch-size 128
    --train-iters 2000
    --lr 1.25e-6
    --bf16
"

torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \
    $MODEL_ARGS \
    $RUN_ARGS \
    --data-path /data/alpaca_text_document \
    --distributed-backend nccl
