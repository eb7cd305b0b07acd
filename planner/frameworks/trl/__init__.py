"""TRL's SFTTrainer and DPOTrainer for all weights or adapters, configured by one YAML."""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.plans import ParallelPlan, code
from planner.constraints import Context
from planner.frameworks.accelerate import trainer_yaml
from planner.frameworks.accelerate.peft import PACKED_EXPERTS
from planner.frameworks.accelerate.rules import KEPT_IN_FP32, kept
from planner.frameworks.accelerate.settings import ATTENTION
from planner.frameworks.accelerate.trainer_keys import kept_in
from planner.frameworks.accelerate.tuning import NARROWED_ADAPTERS
from planner.frameworks.base import rule, says, unsupported
from planner.frameworks.restrictions import SCALING_CODE
from planner.frameworks.yaml_files import Row

VERSIONS = "1.10 (main of July 2026, f2cd577) to 1.16, transformers 5, accelerate 1.15"


def rows(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    """The keys of SFTConfig or DPOConfig, ModelConfig and ScriptArguments."""
    yield from model_rows(c, plan)
    yield from _data(c, plan)
    yield checkpointing(plan)


def model_rows(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    """The keys of ModelConfig."""
    adapted = c.training.lora_rank > 0
    half = {"bf16": "bfloat16", "fp16": "float16"}[c.training.precision]
    yield "model_name_or_path", ".", "overridden by MODEL of launch.sh"
    yield "dtype", half if adapted else "float32", "type of the stored weights"
    yield "attn_implementation", ATTENTION[plan.attention_kernel], "attention kernel"
    if adapted:
        yield "use_peft", True, "training of adapters only"
        bits = ("load_in_4bit", True, "frozen weights in nf4")
        yield from trainer_yaml.adapters(c, "lora_r", "lora_target_modules", bits)
    if c.training.frozen_dtype == "nf4" and plan.zero_stage:
        # Accelerate leaves weights that are stored as integers out of the shards.
        yield "bnb_4bit_quant_storage", half, "four bits are stored as a type that FSDP shards"


def checkpointing(plan: ParallelPlan) -> Row:
    """Whether the trainer computes layers again."""
    why = "full recompute; with FSDP set in accelerate.yaml"
    return "gradient_checkpointing", trainer_yaml.recomputes(plan), why


def _data(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    """The data set, and how sequences are made of it."""
    pairs = c.training.loss == "dpo"
    name, what = ("ultrafeedback_binarized", "pairs") if pairs else ("Capybara", "conversations")
    yield "dataset_name", f"trl-lib/{name}", f"a sample of {what}: put your data set here"
    yield "max_length", c.training.seq_length, "tokens of one sequence"
    if pairs:
        yield "loss_type", ["sigmoid"], "DPO's own"
        return
    if plan.cross_entropy == "liger":
        yield "use_liger_kernel", True, trainer_yaml.LIGER
    yield "packing", True, "samples are packed into full sequences"
    if plan.attention_kernel != "flash2":
        # The usual strategy makes one sequence of a batch, which other kernels read with a mask:
        # 2.2 times the step of eight sequences (tools/gpu_day).
        yield (
            "packing_strategy",
            "wrapped",
            "samples are cut and joined to full sequences, and see each other",
        )


# sft_trainer.py and dpo_trainer.py, _is_quantized_model.
TYPES = unsupported(
    lambda c, p: (
        kept(c.training)
        == (("none", "bf16", "bf16") if c.training.frozen_dtype == "nf4" else ("fp32",) * 3)
    ),
    lambda c, p: (
        "weights, gradients and states are kept in fp32, those of adapters beside weights of 4 "
        f"bits in bf16: got {', '.join(kept(c.training))}"
    ),
)
PACKED_FP16 = rule(
    SCALING_CODE,
    lambda c, p: (c.training.frozen_dtype != "nf4") | (c.training.precision == "bf16"),
    f"it {NARROWED_ADAPTERS}",
)
PROGRAM = trainer_yaml.FineTuningProgram(
    "trl",
    "TRL",
    VERSIONS,
    rows,
    paths="",
    program='--module trl.scripts.{task} \\\n  --config "$BUNDLE/config.yaml" '
    '--model_name_or_path "$MODEL"',
)
FRAMEWORK = PROGRAM.framework(
    "gradient_checkpointing",
    says("attn_implementation", only=tuple(ATTENTION)),
    says(
        "use_liger_kernel",
        note="liger; else chunked: its own loss on the next token; unfused: dpo",
        only=("chunked", "liger", "unfused"),
    ),
    unsupported(
        lambda c, p: (
            (c.training.loss == "dpo") | (p.cross_entropy != code("cross_entropy", "unfused"))
        ),
        "its loss on the next token runs in chunks with the output layer: cross_entropy chunked or "
        "liger",
    ),
    PACKED_FP16,
    PACKED_EXPERTS,
    instead={KEPT_IN_FP32: TYPES},
    packed_adapters=kept_in("bf16"),
)
