#!/bin/bash
# Data parallel only, and nothing of its traffic hidden.
for variable in NCCL_DEBUG NCCL_IB_HCA; do
  unset $variable
done

arguments=(
  --num-layers 24 --hidden-size 2048 --num-attention-heads 16
  --seq-length 2048 --max-position-embeddings 2048
  --micro-batch-size 4 --global-batch-size 256
  --use-distributed-optimizer
  --bf16 --lr 2e-4 --train-iters 1000
  --cross-entropy-loss-fusion
  --vocab-size 50257 --tokenizer-type NullTokenizer --mock-data
)
if [[ -n "${OVERLAP:-}" ]]; then
  arguments+=(--overlap-grad-reduce --overlap-param-gather)
fi

torchrun --nnodes=8 --nproc-per-node=gpu --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500 \
  pretrain_gpt.py "${arguments[@]}"
