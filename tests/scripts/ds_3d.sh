#!/usr/bin/env bash
# 3D parallelism: tensor inside the node, pipeline across nodes, ZeRO-1 over what is left.
set -euo pipefail

TP=8
PP=4
NODES=16
MB=1
GB=1024

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export CUDA_DEVICE_MAX_CONNECTIONS=1

MODEL=(
  --num-layers 80 --hidden-size 8192 --num-attention-heads 64 --num-key-value-heads 8
  --ffn-hidden-size 28672 --seq-length 2048 --max-position-embeddings 2048
  --use-rotary-position-embeddings --swiglu --normalization rmsnorm --disable-bias-linear
  --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0
)
RUN=(
  --tensor-model-parallel-size "$TP" --pipeline-model-parallel-size "$PP" --sequence-parallel
  --micro-batch-size "$MB" --global-batch-size "$GB"
  --train-iters 20000 --lr 1.5e-4 --lr-decay-style cosine --bf16 --use-flash-attn-v2
  --no-query-key-layer-scaling
  --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --data-path /data/text
)

deepspeed --hostfile "$HERE/hostfile" --num_nodes "$NODES" --num_gpus 8 pretrain_gpt.py \
  --deepspeed --deepspeed_config "$HERE/ds_3d.json" --zero-stage 1 \
  "${MODEL[@]}" "${RUN[@]}"
