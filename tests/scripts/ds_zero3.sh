#!/bin/bash
# A 7B model on two nodes with ZeRO-3; the configuration is written on the way.
set -e

BASE_PATH=${BASE_PATH:-/data}
DS_CONFIG=ds_config.json
NUM_GPUS=8
NUM_NODES=2
ZERO_STAGE=3
MICRO_BATCH=1
GLOBAL_BATCH=128

cat <<EOT > $DS_CONFIG
{
  "train_batch_size": $GLOBAL_BATCH,
  "train_micro_batch_size_per_gpu": $MICRO_BATCH,
  "steps_per_print": 1,
  "zero_optimization": {
    "stage": $ZERO_STAGE,
    "overlap_com": true,
    "contiguous_gradients": true,
    "reduce_bucket_size": 5e8
  },
  "gradient_clipping": 1.0,
  "bf16": {"enabled": true},
  "wall_clock_breakdown": false
}
EOT

ds_args="--deepspeed --deepspeed_config=$DS_CONFIG --zero-stage=$ZERO_STAGE --no-pipeline-parallel"

deepspeed --num_nodes $NUM_NODES --num_gpus $NUM_GPUS pretrain_gpt.py \
  --tensor-model-parallel-size 1 \
  --pipeline-model-parallel-size 1 \
  --num-layers 32 \
  --hidden-size 4096 \
  --ffn-hidden-size 11008 \
  --num-attention-heads 32 \
  --seq-length 4096 \
  --max-position-embeddings 4096 \
  --use-rotary-position-embeddings \
  --normalization rmsnorm \
  --swiglu \
  --disable-bias-linear \
  --untie-embeddings-and-output-weights \
  --attention-dropout 0 \
  --hidden-dropout 0 \
  --micro-batch-size $MICRO_BATCH \
  --global-batch-size $GLOBAL_BATCH \
  --train-iters 1000 \
  --lr 3e-4 \
  --bf16 \
  --use-flash-attn-v2 \
  --no-query-key-layer-scaling \
  --data-path $BASE_PATH/text_document \
  --vocab-file $BASE_PATH/gpt2-vocab.json \
  --merge-file $BASE_PATH/gpt2-merges.txt \
  $ds_args
