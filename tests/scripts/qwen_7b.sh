#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
# One task per accelerator; srun is the launcher.
export CUDA_DEVICE_MAX_CONNECTIONS=1
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -1)
export MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))

MODEL_SIZE=7B
case $MODEL_SIZE in
  1.5B) LAYERS=28 HIDDEN=1536 HEADS=12 GROUPS_=2 FFN=8960 ;;
  7B) LAYERS=28 HIDDEN=3584 HEADS=28 GROUPS_=4 FFN=18944 ;;
  *) echo "no such size: $MODEL_SIZE"; exit 1 ;;
esac

ARGS="--num-layers $LAYERS --hidden-size $HIDDEN --num-attention-heads $HEADS \
 --group-query-attention --num-query-groups $GROUPS_ --ffn-hidden-size $FFN"
ARGS+=" --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope"
ARGS+=" --normalization RMSNorm --swiglu --disable-bias-linear --add-qkv-bias"
ARGS+=" --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0"
ARGS+=" --micro-batch-size 1 --global-batch-size 1024 --train-iters 5000 --lr 3e-4 --bf16"
ARGS+=" --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
ARGS+=" --cross-entropy-loss-fusion --vocab-size 152064 --tokenizer-type NullTokenizer --mock-data"

srun python3 pretrain_gpt.py $ARGS
