"""Rules for what Unsloth has no option for, or does otherwise than planned.

Read from Unsloth 2026.10.9: models/loader.py, models/llama.py, models/_utils.py, trainer.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.spec import ModelSpec
from planner.constraints import Rule
from planner.frameworks import rules
from planner.frameworks.accelerate.rules import (
    EACH_LAYER,
    HALF_PRECISION,
    OFFLOADED_CHECKPOINTS,
    kept,
    lacks,
)
from planner.frameworks.accelerate.settings import OPTIMIZERS
from planner.frameworks.base import rule, unsupported
from planner.huggingface.export.exporter import config_of

# Families that FastLanguageModel has layers of its own for and whose samples it packs: of Gemma 2
# and gpt-oss it does not (PADDING_FREE_BLOCKLIST), others have no loss in chunks.
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma")
# Sequences that are shorter are recomputed from checkpoints on the card.
LEAST_OFFLOADED = 512


def unsaid(model: ModelSpec) -> Iterator[str]:
    """Why its layers do not build the model."""
    yield from lacks(model)
    keys = config_of(model)
    if keys is not None and keys["model_type"] not in FAMILIES:
        yield (
            f"of Unsloth its own layers are modelled here, those of {', '.join(FAMILIES)}, not "
            f"how it trains {keys['model_type']}"
        )


TYPES = unsupported(
    lambda c, p: (
        kept(c.training) == ("fp32",) * 3
        or (
            not c.training.lora_rank
            and c.training.precision == "bf16"
            and kept(c.training) == ("none", "bf16", "bf16")
        )
    ),
    lambda c, p: (
        "weights, gradients and states are kept in fp32 or, of a whole model in bf16, all in "
        f"bf16: got {', '.join(kept(c.training))} with {c.training.precision}"
    ),
)
RULES: tuple[Rule, ...] = (
    rules.EQUAL_NODES,
    rules.optimizers(
        *OPTIMIZERS, others="torch's Muon needs a second optimizer for norms and embeddings"
    ),
    EACH_LAYER,
    OFFLOADED_CHECKPOINTS,
    rule(
        "offload",
        lambda c, p: (p.offload_activations == 0) | (c.training.seq_length >= LEAST_OFFLOADED),
        lambda c, p: (
            f"it keeps checkpoints of less than {LEAST_OFFLOADED} tokens on the card, got "
            f"{c.training.seq_length}"
        ),
    ),
    HALF_PRECISION,
    rules.HALF_BESIDE_PACKED,
    TYPES,
    unsupported(
        lambda c, p: (c.training.gradient_reduce_dtype == c.training.gradient_dtype) | (p.dp == 1),
        "copies reduce gradients in their own type, {c.training.gradient_dtype}: got "
        "{c.training.gradient_reduce_dtype}",
    ),
)
