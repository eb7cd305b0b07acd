#!/usr/bin/env bash
# verl (main of January 2026 (b178a3c) with Megatron-Core 0.15 and mbridge)
# mixtral on 2x8xh100: 16 accelerators = tp 1 x cp 1 x pp 1 x dp 16
# train_batch 64 = micro_batch 1 * accumulation 4 * dp 16
# Needs a checkpoint and prompts: MODEL and TRAIN_FILES.
set -euo pipefail

# One call on each of the 2 nodes.
NNODES="${NNODES:-2}"
NODE_RANK="${NODE_RANK:?set it to the number of this node, 0 to 1}"
MASTER_ADDR="${MASTER_ADDR:?set it to the address of node 0, the same on every node}"
MASTER_PORT="${MASTER_PORT:-29500}"
BUNDLE="${BASH_SOURCE[0]%/*}"
[ -d "$BUNDLE" ] || BUNDLE=.
MODEL="${MODEL:-$BUNDLE}"  # a checkpoint of the model of config.json
TRAIN_FILES="${TRAIN_FILES:-./train.parquet}"  # prompts with their rewards' ground truth
VAL_FILES="${VAL_FILES:-./test.parquet}"

# Not part of the plan and left at the default: set by hand what the model's config.json
# says otherwise.
#   norm epsilon: rms_norm_eps, layer_norm_epsilon in config.json
#   rotary base and scaling: rope_parameters in config.json
#   activation: hidden_act, activation_function in config.json
#   spread of the initial weights: initializer_range in config.json
#   special tokens: bos_token_id, eos_token_id in config.json
#   balancing loss: output_router_logits (false), router_aux_loss_coef
#   weights of the experts: norm_topk_prob, routed_scaling_factor
OVERRIDES=(
  algorithm.adv_estimator=grpo  # advantages within the responses of one prompt
  data.max_prompt_length=1024  # with the response 2048 tokens
  data.max_response_length=1024  # of the longest one
  data.train_batch_size=8  # prompts of one step
  actor_rollout_ref.actor.ppo_mini_batch_size=8  # prompts of one update
  actor_rollout_ref.rollout.n=8  # responses of one prompt: 64 samples of an update
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1  # sequences per pass and replica
  actor_rollout_ref.actor.use_dynamic_bsz=False  # micro-batches of as many sequences
  actor_rollout_ref.actor.megatron.dtype=bfloat16  # type of weights and activations
  actor_rollout_ref.actor.optim.optimizer=adam  # as planned
  ++actor_rollout_ref.actor.megatron.override_transformer_config.moe_token_dispatcher_type=alltoall  # tokens travel by alltoall
  actor_rollout_ref.actor.megatron.expert_model_parallel_size=4  # ranks that share the experts
  actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=1  # ranks that split one expert
  actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1  # ranks that split every layer
  actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=1  # stages of layers
  actor_rollout_ref.actor.megatron.context_parallel_size=1  # ranks that split the sequence
  actor_rollout_ref.actor.megatron.use_distributed_optimizer=True  # optimizer states sharded (ZeRO 1)
  ++actor_rollout_ref.actor.megatron.override_ddp_config.grad_reduce_in_fp32=True  # gradients kept and reduced in fp32
  ++actor_rollout_ref.actor.megatron.override_transformer_config.attention_backend=flash  # attention kernel
  ++actor_rollout_ref.actor.megatron.override_ddp_config.overlap_grad_reduce=True  # gradients reduced during the backward pass
  ++actor_rollout_ref.actor.megatron.override_ddp_config.overlap_param_gather=True  # weights gathered during the forward pass
  actor_rollout_ref.actor.megatron.sequence_parallel=False  # norms and dropout whole on every rank
  actor_rollout_ref.rollout.name=vllm  # PLACEHOLDER of generation: choose by your engine
  actor_rollout_ref.rollout.tensor_model_parallel_size=1  # PLACEHOLDER of generation: choose by your engine
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1  # PLACEHOLDER of generation: choose by your engine
  actor_rollout_ref.actor.optim.lr=1e-6  # PLACEHOLDER for the smoke run: set your own
  trainer.total_training_steps=20  # a smoke run
)

if [ "$NODE_RANK" != 0 ]; then
  exec ray start --address "$MASTER_ADDR:6379" --num-gpus 8 --block
fi
ray start --head --node-ip-address "$MASTER_ADDR" --port 6379 --num-gpus 8 \
  --dashboard-port 8265 --disable-usage-stats
ray job submit --address http://127.0.0.1:8265 \
  -- python3 -m verl.trainer.main_ppo \
  --config-path=config --config-name=ppo_megatron_trainer.yaml \
  "${OVERRIDES[@]}" \
  actor_rollout_ref.model.path="$MODEL" \
  data.train_files="$TRAIN_FILES" \
  data.val_files="$VAL_FILES" \
  trainer.nnodes="$NNODES" \
  trainer.n_gpus_per_node=8 \
  "$@"
