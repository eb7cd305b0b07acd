/* An example launch script with room for improvement, shown until the user pastes one. */

export const EXAMPLE = `#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nnodes 16 --nproc_per_node 8 \\
  --rdzv_backend c10d --rdzv_endpoint $MASTER_ADDR:29500 \\
  pretrain_gpt.py \\
  --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 \\
  --num-attention-heads 64 --group-query-attention --num-query-groups 8 \\
  --swiglu --normalization RMSNorm --disable-bias-linear \\
  --untie-embeddings-and-output-weights --use-rotary-position-embeddings \\
  --vocab-size 128256 --seq-length 8192 --max-position-embeddings 8192 \\
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 8 \\
  --micro-batch-size 1 --global-batch-size 1024 \\
  --use-flash-attn --use-distributed-optimizer \\
  --recompute-granularity full --recompute-method uniform \\
  --recompute-num-layers 1 --bf16 --train-iters 100000 \\
  --data-path /data/text --tokenizer-type HuggingFaceTokenizer
`;
