"""TRL's SFTTrainer for all weights or adapters, configured by one YAML."""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.plans import ParallelPlan
from planner.constraints import Context
from planner.frameworks.accelerate import trainer_yaml
from planner.frameworks.accelerate.settings import ATTENTION
from planner.frameworks.base import cannot, says
from planner.frameworks.yaml_files import Row

VERSIONS = "1.10 (main of July 2026, f2cd577) to 1.16, transformers 5, accelerate 1.15"


def rows(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    """The keys of SFTConfig, ModelConfig and ScriptArguments."""
    adapted = c.training.lora_rank > 0
    half = {"bf16": "bfloat16", "fp16": "float16"}[c.training.precision]
    yield "model_name_or_path", ".", "overridden by MODEL of launch.sh"
    yield "dtype", half if adapted else "float32", "type of the stored weights"
    yield "attn_implementation", ATTENTION[plan.attention_kernel], "attention kernel"
    if adapted:
        yield "use_peft", True, "training of adapters only"
        bits = ("load_in_4bit", True, "frozen weights in nf4")
        yield from trainer_yaml.adapters(c, "lora_r", "lora_target_modules", bits)
    yield "dataset_name", "trl-lib/Capybara", "a sample of conversations: put your data set here"
    yield "max_length", c.training.seq_length, "tokens of one sequence"
    yield "packing", True, "samples are packed into full sequences"
    if plan.attention_kernel != "flash2":
        # The usual strategy makes one sequence of a batch, which other kernels read with a mask:
        # 2.2 times the step of eight sequences (tools/gpu_day).
        yield "packing_strategy", "wrapped", "sequences of a batch stay apart"
    yield (
        "gradient_checkpointing",
        trainer_yaml.recomputes(plan),
        "full recompute; with FSDP set in accelerate.yaml",
    )


PROGRAM = trainer_yaml.FineTuningProgram(
    "trl",
    "TRL",
    VERSIONS,
    rows,
    paths="",
    program='--module trl.scripts.sft \\\n  --config "$BUNDLE/config.yaml" '
    '--model_name_or_path "$MODEL"',
)
FRAMEWORK = PROGRAM.framework(
    "gradient_checkpointing",
    says("attn_implementation", only=tuple(ATTENTION)),
    cannot("the output layer and the loss run together in chunks of tokens", "chunked"),
)
