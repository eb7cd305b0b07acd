#!/bin/bash
# Llama 3 8B with everything in strings.

GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-2}
TP_SIZE=2
PP_SIZE=1
MICRO_BATCH_SIZE=1
GLOBAL_BATCH_SIZE=128
SEQ_LENGTH=8192

DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES \
  --master_addr ${MASTER_ADDR:-localhost} --master_port ${MASTER_PORT:-6000}"

MODEL_ARGS="--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \
  --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
  --seq-length $SEQ_LENGTH --max-position-embeddings $SEQ_LENGTH \
  --position-embedding-type rope --rotary-base 500000 --normalization RMSNorm --swiglu \
  --untie-embeddings-and-output-weights --disable-bias-linear \
  --attention-dropout 0 --hidden-dropout 0 --vocab-size 128256"

TRAINING_ARGS="--micro-batch-size $MICRO_BATCH_SIZE --global-batch-size $GLOBAL_BATCH_SIZE \
  --train-iters 10000 --lr 3e-4 --bf16 --cross-entropy-loss-fusion \
  --recompute-granularity full --recompute-method block --recompute-num-layers 32"

PARALLEL_ARGS="--tensor-model-parallel-size $TP_SIZE --pipeline-model-parallel-size $PP_SIZE \
  --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"

torchrun $DISTRIBUTED_ARGS pretrain_gpt.py $MODEL_ARGS $TRAINING_ARGS $PARALLEL_ARGS --mock-data \
  --tokenizer-type NullTokenizer
