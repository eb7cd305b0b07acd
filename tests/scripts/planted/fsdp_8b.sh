#!/bin/bash
# Llama 3.1 8B on two nodes by accelerate and FSDP 2.
export OMP_NUM_THREADS=8

accelerate launch --config_file fsdp_8b.yaml \
    --num_machines 2 --machine_rank "${NODE_RANK:-0}" \
    --main_process_ip "${MASTER_ADDR:-localhost}" --main_process_port 29500 \
    run_clm.py \
    --model_name_or_path meta-llama/Llama-3.1-8B \
    --block_size 7168 \
    --attn_implementation flash_attention_2 \
    --per_device_train_batch_size 1 \
    --gradient_accumulation_steps 4 \
    --learning_rate 2e-5
