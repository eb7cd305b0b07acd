#!/bin/bash
#SBATCH --account=training
#SBATCH --partition=batch
#SBATCH --job-name=nemotron-like-43b
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --exclusive

# What the template sets for every job.
export TRANSFORMERS_OFFLINE=1
export TORCH_NCCL_AVOID_RECORD_STREAMS=1
export NCCL_NVLS_ENABLE=0
export NVTE_FWD_LAYERNORM_SM_MARGIN=16
export NVTE_BWD_LAYERNORM_SM_MARGIN=16
export CUDA_DEVICE_MAX_CONNECTIONS=1
export MASTER_ADDR=$(scontrol show hostname $SLURM_NODELIST | head -n1)
export MASTER_PORT=29500

# What this job sets.
export TP=16
export PP=2
export MBS=1
export GBS=256

CODE_DIR=/workspace/megatron-lm
CMD="cd $CODE_DIR && python3 -u pretrain_gpt.py \
  --num-layers 48 \
  --hidden-size 8192 \
  --ffn-hidden-size 32768 \
  --num-attention-heads 64 \
  --group-query-attention \
  --num-query-groups 16 \
  --seq-length 4096 \
  --max-position-embeddings 4096 \
  --position-embedding-type rope \
  --squared-relu \
  --untie-embeddings-and-output-weights \
  --disable-bias-linear \
  --attention-dropout 0 \
  --hidden-dropout 0 \
  --vocab-size 256000 \
  --tensor-model-parallel-size $TP \
  --pipeline-model-parallel-size $PP \
  --sequence-parallel \
  --use-distributed-optimizer \
  --overlap-grad-reduce \
  --overlap-param-gather \
  --micro-batch-size $MBS \
  --global-batch-size $GBS \
  --train-samples 300000000 \
  --lr 1e-4 \
  --bf16 \
  --cross-entropy-loss-fusion \
  --data-path /data/blend \
  --tokenizer-type GPTSentencePieceTokenizer \
  --tokenizer-model /data/tokenizer.model"

srun --output log-%j-%n.out --container-image train.sqsh bash -c "$CMD"
