"""The keys and defaults by which LLaMA-Factory, Axolotl and TRL differ.

Source: their documentation of August 2026: LLaMA-Factory 0.9, Axolotl 0.13, TRL 0.24.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Trainer:
    """The keys and defaults of one trainer.

    marks: keys that identify it; beside: others of its own, of which one must stand there too;
    checkpoints: whether layers are recomputed by default;
    chunks_loss: whether its loss never has the logits of all tokens; trains_half: whether weights
    that are all trained, by FSDP 2 or without shards, are kept in half precision; loads_half:
    whether it loads weights in the type that torch_dtype says;
    narrows_adapters: whether adapters beside weights of 4 bits are kept in bf16;
    offloads_instead: whether activations beside adapters are offloaded in place of recompute;
    names: the package whose keys.json has all of its keys, if it drops others without a word;
    tasks: keys of what it does in place of training where do_train is not set; usual_tuning: what
    it trains by default; usual_targets: modules with adapters by default, if not every linear
    layer; generates: keys of the responses that a step begins with, where the training is read
    without them.
    """

    title: str
    marks: tuple[str, ...]
    model: tuple[str, ...]
    length: tuple[str, ...]
    micro: str = "per_device_train_batch_size"
    rank: str = "lora_r"
    targets: tuple[str, ...] = ("lora_target_modules",)
    usual_length: int | None = None
    usual_micro: int = 8
    usual_rank: int = 8
    usual_targets: tuple[str, ...] = ()
    usual_tuning: str = "full"
    checkpoints: bool = False
    chunks_loss: bool = False
    trains_half: bool = False
    loads_half: bool = False
    narrows_adapters: bool = False
    offloads_instead: bool = False
    names: str = ""
    tasks: tuple[str, ...] = ()
    generates: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


# transformers' Trainer itself: each script has its own option for the length, and its own model.
PLAIN = Trainer(
    "transformers' Trainer",
    (),
    ("model_name_or_path",),
    (
        "model_max_length", "max_seq_length", "max_length", "max_seq_len", "block_size",
        "seq_length", "seq_len", "max_len", "cutoff_len",
    ),
    loads_half=True,
)  # fmt: skip
# Lengths of the two parts of a sample.
PARTS = (
    ("source_max_len", "target_max_len"), ("max_source_length", "max_target_length"),
    ("max_prompt_length", "max_target_length"), ("max_prompt_length", "max_completion_length"),
)  # fmt: skip
_LLAMA_FACTORY = Trainer(
    "LLaMA-Factory",
    ("finetuning_type", "cutoff_len"),
    ("model_name_or_path",),
    ("cutoff_len",),
    rank="lora_rank",
    targets=("lora_target",),
    usual_length=2048,
    usual_tuning="lora",
    checkpoints=True,
    tasks=("do_predict", "task"),
)
# LLaMA-Factory's v1 format, after translation to the older keys.
NEWER = replace(_LLAMA_FACTORY, marks=(), usual_micro=1, usual_tuning="full")
# The parts of a sample of GRPO, and TRL's defaults for their lengths.
GRPO_PARTS = {"max_prompt_length": 512, "max_completion_length": 256}
_TRL = Trainer(
    "TRL",
    ("dataset_name", "dataset_text_field", "use_peft", "dataset_mixture", "dataset_mixer"),
    ("model_name_or_path",),
    ("max_length", "max_seq_length"),
    usual_length=1024,
    usual_rank=16,
    usual_targets=("q_proj", "v_proj"),
    checkpoints=True,
    chunks_loss=True,
    loads_half=True,
    narrows_adapters=True,
)
# Its GRPO, marked by its generations and its length: the engine's, or the longest prompt's and
# response's.
GRPO = replace(
    _TRL,
    marks=("num_generations",),
    length=("vllm_max_model_length",),
    usual_length=None,
    chunks_loss=False,
    generates=(
        "loss_type", "beta", "num_iterations", "generation_batch_size", "steps_per_generation",
        *GRPO_PARTS, "use_vllm", "vllm_mode", "vllm_tensor_parallel_size",
        "vllm_gpu_memory_utilization", "vllm_enable_sleep_mode", "vllm_server_host",
        "vllm_server_port", "temperature", "epsilon", "epsilon_high", "scale_rewards",
    ),
)  # fmt: skip
TRAINERS = (
    _LLAMA_FACTORY,
    Trainer(
        "Axolotl",
        ("base_model",),
        ("base_model",),
        ("sequence_len",),
        micro="micro_batch_size",
        usual_length=512,
        usual_micro=1,
        trains_half=True,
        offloads_instead=True,
        names="planner.frameworks.axolotl",
        beside=("datasets", "micro_batch_size", "sequence_len", "adapter", "num_epochs", "rl"),
    ),
    _TRL,
)


def kept_in(dtype: str) -> dict[str, str]:
    """Training fields of weights that are trained in this type without a second copy."""
    names = ("gradient_dtype", "gradient_reduce_dtype", "optimizer_state_dtype")
    return dict.fromkeys(names, dtype) | {"master_weights_dtype": "none"}
