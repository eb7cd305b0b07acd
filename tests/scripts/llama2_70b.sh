#!/bin/bash
#SBATCH --job-name=llama2-70b
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --output=%x-%j.out

export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_IB_TIMEOUT=19
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=6000

RUN_DIR=/results/$SLURM_JOB_NAME
mkdir -p "$RUN_DIR/logs"

options=" \
    --tensor-model-parallel-size 8 \
    --pipeline-model-parallel-size 4 \
    --use-distributed-optimizer \
    --overlap-grad-reduce \
    --overlap-param-gather \
    --num-layers 80 \
    --hidden-size 8192 \
    --ffn-hidden-size 28672 \
    --num-attention-heads 64 \
    --num-query-groups 8 \
    --seq-length 4096 \
    --max-position-embeddings 4096 \
    --position-embedding-type rope \
    --normalization RMSNorm \
    --swiglu \
    --untie-embeddings-and-output-weights \
    --disable-bias-linear \
    --attention-dropout 0 \
    --hidden-dropout 0 \
    --micro-batch-size 1 \
    --global-batch-size 1024 \
    --train-iters 500000 \
    --lr 1.5e-4 \
    --min-lr 1.5e-5 \
    --lr-decay-style cosine \
    --lr-warmup-iters 2000 \
    --tokenizer-type Llama2Tokenizer \
    --tokenizer-model /data/tokenizer.model \
    --data-path /data/text_document \
    --cross-entropy-loss-fusion \
    --bf16"

srun --label --container-image=megatron.sqsh --container-mounts=/data:/data,/results:/results \
    bash -c "python -u pretrain_gpt.py ${options}"
