#!/bin/bash
# Megatron-Bridge's recipe of Llama 3 70B on 64 H100, a few values laid over it.
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1

torchrun --nnodes 8 --nproc-per-node 8 --node-rank "${NODE_RANK:-0}" \
    --master-addr "${MASTER_ADDR:-localhost}" \
    scripts/training/run_recipe.py \
    --recipe llama3_70b_pretrain_64gpu_h100_bf16_config \
    train.global_batch_size=256 \
    train.micro_batch_size=1 \
    model.tensor_model_parallel_size=4 \
    model.pipeline_model_parallel_size=4 \
    model.context_parallel_size=2 \
    model.virtual_pipeline_model_parallel_size=5 \
    model.sequence_parallel=true
