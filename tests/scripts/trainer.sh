#!/bin/bash
# A fine-tuning by transformers' Trainer under DeepSpeed, whose JSON was copied from another run.
torchrun --nproc_per_node 8 train.py \
    --model_name_or_path meta-llama/Llama-3.1-8B \
    --per_device_train_batch_size 8 \
    --gradient_accumulation_steps 4 \
    --learning_rate 2e-5 \
    --bf16 True \
    --gradient_checkpointing True \
    --max_seq_length 4096 \
    --deepspeed trainer.json \
    --output_dir out
