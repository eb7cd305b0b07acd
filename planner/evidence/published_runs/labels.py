"""The words of a published row in the terms of a plan: precision, schedule, recomputation."""

from __future__ import annotations

import re
from typing import Any

from cost_models.package_files import table
from cost_models.plans import RECOMPUTE_MODULES
from cost_models.spec import AcceleratorSpec, TrainingSpec
from planner.evidence.published_runs.runs import Run

_TABLE = table(__package__ or "", "labels.json")
Patterns = list[tuple[str, str]]  # the first that the label has, and what it is then
SCHEDULES: Patterns = _TABLE["schedules"]
# NeMo and Megatron-Bridge write the recipe behind "FP8-".
_PRECISIONS: Patterns = _TABLE["precisions"]
_RECIPES: Patterns = _TABLE["recipes"]
# MaxText's and Praxis' names of what a layer of JAX keeps, and the modules that it repeats then.
_REMAT_POLICIES: list[tuple[str, list[str]]] = _TABLE["remat_policies"]
_NONE: dict[str, Any] = {"recompute": "none"}
_FULL: dict[str, Any] = {
    "recompute": "full", "recompute_method": "uniform", "recompute_num_layers": 1,
}  # fmt: skip
_LONGEST = re.compile(r"cut at (\d+), padded to the longest of the batch")
# What a part without the matrix units of a precision is taken to have computed in.
_FALLBACK: dict[str, list[str]] = _TABLE["fallback"]


def precision_of(run: Run, accelerator: AcceleratorSpec) -> tuple[str, list[str]]:
    """Precision of the matrix work, and what was assumed.  Raises ValueError."""
    stated = run["precision"].lower() if run.known("precision") else ""
    stated_name = next((name for pattern, name in _PRECISIONS if re.search(pattern, stated)), None)
    if stated_name is None and stated:
        raise ValueError(f"precision {stated[:40]!r} is not modelled")
    notes = [] if stated_name and stated != "mixed" else ["bf16: precision not stated"]
    precision = stated_name or "bf16"
    if accelerator.peak_flop_per_s(precision) is None:
        known = [p for p in _FALLBACK[precision] if accelerator.peak_flop_per_s(p) is not None]
        if not known:
            raise ValueError(f"{accelerator.id} has no matrix units for {precision}")
        notes.append(f"{known[0]}: {accelerator.id} has no {precision} matrix units")
        precision = known[0]
    return precision, notes


def recipe_of(run: Run) -> str:
    """How fp8 values are scaled: as the label or the notes say, else one current scale a tensor."""
    text = f"{run['precision']} ; {run.notes}".lower()
    return next((name for pattern, name in _RECIPES if re.search(pattern, text)), "tensorwise")


def schedule_of(run: Run, pp: int, vpp: int | None) -> str:
    """Pipeline schedule; an unclear one is 1F1B, interleaved where there are several chunks."""
    text = run["schedule"].lower()
    chunks = (vpp or 1) > 1 and pp > 1
    plain = "interleaved-1f1b" if chunks else "1f1b"
    if pp == 1 or ("not stated" in text and "or" in text):
        return plain
    named = next((name for pattern, name in SCHEDULES if re.search(pattern, text)), plain)
    return plain if named == "1f1b" else named


def recompute_of(run: Run, torch: bool, default: str | None = None) -> list[dict[str, Any]]:
    """What is computed again: one choice, or those it may be where the row does not say.

    default: what the software's own recipes do.
    """
    text, notes = run["recompute"].lower(), run.notes.lower()
    selective: dict[str, Any] = {"recompute": "selective", "recompute_modules": ("core_attn",)}
    if torch:
        selective = {"recompute": "selective", "recompute_modules": ("op",)}
        if re.search(r"every other|selective layer", f"{text} {notes}"):
            selective = _every_nth_layer(2)
    if not run.known("recompute"):
        return [{"recompute": default}] if default else _any_recompute(run, torch, selective)
    if "full" not in text and (policy := _remat_policy(f"{text} ; {notes}")):
        return [{"recompute": "selective", "recompute_modules": policy}]
    if named := _modules(text):
        return [{"recompute": "selective", "recompute_modules": named}]
    if layers := re.search(r"(\d+) (?:of \d+ )?layers|block[- =:(]+(\d+)", text):
        count = max(int(layers.group(1) or layers.group(2)), 1)
        return [{"recompute": "full", "recompute_method": "block", "recompute_num_layers": count}]
    if re.search("select|partial", text):
        # "... recomputes layernorm+moe_act; ...": what stands in brackets is some other runs'.
        match = re.search(r"\brecomputes ([a-z_+, ]+)", notes)
        named = _modules(match.group(1) if match else "")
        return [{"recompute": "selective", "recompute_modules": named} if named else selective]
    every = r"full|^(1|yes|true|on|all|enabled|ac)$|block|uniform|checkpoint|every layer"
    if re.search(every, text) and not re.search(r"\bno\b|without|disabled", text):
        return [_FULL]
    return [_NONE]


def _any_recompute(run: Run, torch: bool, selective: dict[str, Any]) -> list[dict[str, Any]]:
    """What may be computed again where a row says nothing."""
    # Pax keeps all products but those inside attention (SAVE_DOT_WITH_NO_BATCH_DIM).
    dots = [{**selective, "recompute_modules": ("core_attn",)}] if "pax" in run["stack"] else []
    others = dots if torch else [selective, _every_nth_layer(4), _every_nth_layer(2)]
    return [_NONE, *others, _FULL]


def _remat_policy(text: str) -> tuple[str, ...]:
    """The modules that a policy of JAX repeats; empty: it names none."""
    policies = (modules for pattern, modules in _REMAT_POLICIES if re.search(pattern, text))
    return tuple(next(policies, ()))


def _modules(text: str) -> tuple[str, ...]:
    """The modules of a layer that it names."""
    return tuple(m for m in RECOMPUTE_MODULES if re.search(rf"\b{m}\b", text) and m != "op")


def _every_nth_layer(nth: int) -> dict[str, Any]:
    """Every nth layer in full; the count follows once the stages are known (-n until then)."""
    return {"recompute": "full", "recompute_method": "block", "recompute_num_layers": -nth}


def at_its_peak(run: Run, training: TrainingSpec) -> TrainingSpec:
    """The training of the step in which a row's memory is fullest.

    Gradients of the other micro-batches of its step are there too; of batches padded to their
    longest sample, the peak is that of the longest that is not cut.
    """
    fields: dict[str, int] = {}
    if "one micro-step" in run.notes.lower():
        fields["global_batch_size"] = 2 * training.global_batch_size
    if longest := _LONGEST.search(run.notes):
        fields["seq_length"] = int(longest[1])
    return training.model_copy(update=fields) if fields else training


def memory_quantity(run: Run) -> str:
    """How a source read memory: what the allocator handed out, holds, or what the driver sees."""
    notes = run.notes.lower()
    if "nvidia-smi" in notes or "driver" in notes:
        return "driver"
    if "max_memory_allocated" in notes or "max_allocated" in notes or "max allocated" in notes:
        return "allocated"
    if (
        "cuda reserved" in notes
        or "max_memory_reserved" in notes
        or "max reserved" in notes
        or "titan" in run["stack"].lower()
    ):
        return "reserved"
    return "allocated"
