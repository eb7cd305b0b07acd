"""LLaMA-Factory: supervised or preference tuning of weights or adapters, by one YAML."""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.plans import ParallelPlan
from planner.constraints import Context
from planner.frameworks.accelerate import trainer_yaml
from planner.frameworks.accelerate.peft import PACKED_EXPERTS
from planner.frameworks.base import says
from planner.frameworks.yaml_files import Row

VERSIONS = "main of August 2026 (ff6d4d1) with transformers up to 5.8, accelerate 1.15"
KERNELS = {"flash": "sdpa", "flash2": "fa2", "unfused": "disabled"}


def rows(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    """LLaMA-Factory's own keys."""
    adapted = c.training.lora_rank > 0
    yield "model_name_or_path", ".", "overridden by MODEL of launch.sh"
    task = trainer_yaml.task(c.training)
    yield "stage", task, "sft: training on conversations; pt: on texts; dpo: on pairs"
    yield "do_train", True, "training without evaluation"
    yield "finetuning_type", "lora" if adapted else "full", "trained weights"
    if adapted:
        bits = ("quantization_bit", 4, "frozen weights in nf4")
        yield from trainer_yaml.adapters(c, "lora_rank", "lora_target", bits)
    data = {"sft": "alpaca_en_demo", "dpo": "dpo_en_demo"}[task]
    yield "dataset", data, "bundled sample: put your data set here"
    yield "template", "default", "chat template: use that of your model"
    yield "cutoff_len", c.training.seq_length, "tokens of one sequence"
    if task == "sft":
        yield "packing", True, "samples are packed into full sequences"
    if plan.cross_entropy == "liger":
        yield "enable_liger_kernel", True, trainer_yaml.LIGER
    yield "flash_attn", KERNELS[plan.attention_kernel], "attention kernel"
    yield (
        "disable_gradient_checkpointing",
        not trainer_yaml.recomputes(plan),
        "true: no recompute, or FSDP does it",
    )


PROGRAM = trainer_yaml.FineTuningProgram(
    "llama-factory",
    "LLaMA-Factory",
    VERSIONS,
    rows,
    paths='LLAMAFACTORY_PATH="${LLAMAFACTORY_PATH:-.}"  # a checkout of LLaMA-Factory',
    program='"$LLAMAFACTORY_PATH/src/train.py" \\\n  "$BUNDLE/config.yaml" '
    'model_name_or_path="$MODEL"',
)
FRAMEWORK = PROGRAM.framework(
    "disable_gradient_checkpointing",
    says("flash_attn", only=tuple(KERNELS)),
    says("enable_liger_kernel", only=("unfused", "liger")),
    PACKED_EXPERTS,
)
