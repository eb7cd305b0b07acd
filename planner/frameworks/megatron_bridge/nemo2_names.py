"""Names of NeMo 2, and those of Megatron-Bridge and of the presets for the same things."""

from __future__ import annotations

# The class of a model's configuration -> its preset.
MODELS = {
    "Llama2Config7B": "llama-2-7b", "Llama3Config8B": "llama-3.1-8b",
    "Llama3Config70B": "llama-3.1-70b", "Llama31Config8B": "llama-3.1-8b",
    "Llama31Config70B": "llama-3.1-70b", "Llama31Config405B": "llama-3.1-405b",
    "Llama31Nemotron70BConfig": "llama-3.1-70b", "Llama31NemotronNano8BConfig": "llama-3.1-8b",
    "Llama32Config1B": "llama-3.2-1b", "Llama32Config3B": "llama-3.2-3b",
    "Llama33NemotronSuper49BConfig": "llama-3.3-nemotron-super-49b",
    "Llama4Experts16Config": "llama-4-scout", "Llama4Experts128Config": "llama-4-maverick",
    "MistralConfig7B": "mistral-7b", "MixtralConfig8x7B": "mixtral-8x7b",
    "MixtralConfig8x22B": "mixtral-8x22b", "GPTConfig175B": "gpt3-175b",
    "Nemotron4Config15B": "nemotron-4-15b", "Nemotron4Config340B": "nemotron-4-340b",
    "NemotronHConfig56B": "nemotron-h-56b", "DeepSeekV2Config": "deepseek-v2",
    "DeepSeekV2LiteConfig": "deepseek-v2-lite", "DeepSeekV3Config": "deepseek-v3",
    "Gemma2Config9B": "gemma-2-9b", "Gemma2Config27B": "gemma-2-27b",
    "Phi3ConfigMini": "phi-3-mini", "GPTOSSConfig20B": "gpt-oss-20b",
    "GPTOSSConfig120B": "gpt-oss-120b", "Qwen25Config500M": "qwen2.5-0.5b",
    "Qwen25Config1P5B": "qwen2.5-1.5b", "Qwen25Config7B": "qwen2.5-7b",
    "Qwen25Config14B": "qwen2.5-14b", "Qwen25Config32B": "qwen2.5-32b",
    "Qwen25Config72B": "qwen2.5-72b", "Qwen3Config600M": "qwen3-0.6b",
    "Qwen3Config1P7B": "qwen3-1.7b", "Qwen3Config4B": "qwen3-4b", "Qwen3Config8B": "qwen3-8b",
    "Qwen3Config14B": "qwen3-14b", "Qwen3Config32B": "qwen3-32b",
    "Qwen3Config30B_A3B": "qwen3-30b-a3b", "Qwen3Config235B_A22B": "qwen3-235b-a22b",
}  # fmt: skip
# Prefix of a launch's key -> the section of Bridge's container.
GROUPS = {
    "trainer.strategy.ddp.": "ddp.", "trainer.strategy.": "model.", "model.config.": "model.",
    "trainer.plugins.": "mixed_precision.", "optim.config.": "optimizer.", "peft.": "peft.",
}  # fmt: skip
KEYS = {
    "data.seq_length": "model.seq_length", "data.global_batch_size": "train.global_batch_size",
    "data.micro_batch_size": "train.micro_batch_size", "trainer.plugins": "mixed_precision",
    "trainer.num_nodes": "nodes", "trainer.devices": "accelerators_per_node", "peft": "peft",
    "model.config": "model", "model": "model",
}  # fmt: skip
# Argument of a recipe -> the key in Bridge's container; other arguments do not affect a step.
WORDS = {
    "tensor_parallelism": "model.tensor_model_parallel_size",
    "pipeline_parallelism": "model.pipeline_model_parallel_size",
    "virtual_pipeline_parallelism": "model.virtual_pipeline_model_parallel_size",
    "context_parallelism": "model.context_parallel_size",
    "sequence_parallelism": "model.sequence_parallel",
    "expert_parallelism": "model.expert_model_parallel_size",
    "num_nodes": "nodes", "num_gpus_per_node": "accelerators_per_node",
    "global_batch_size": "train.global_batch_size", "micro_batch_size": "train.micro_batch_size",
    "seq_length": "model.seq_length",
}  # fmt: skip
# NeMo 2's function or class of mixed precision -> that of Bridge.
PRECISIONS = {
    "bf16_with_fp8_mixed": "bf16_with_fp8_delayed_scaling_mixed",
    "MegatronMixedPrecision": "MixedPrecisionConfig",
}
# Defaults of GPTConfig and its descendants (gpt/model/base.py).
DEFAULTS = {"model.cross_entropy_loss_fusion": True, "model.moe_token_dispatcher_type": "alltoall"}
