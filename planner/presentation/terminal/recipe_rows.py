"""The nearest published recipe in a line or two; the page and `--json` show it in full."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from cost_models.catalog.hardware import accelerator
from planner.documents.answer import PublishedRecipe
from planner.documents.formats import TIE, gap
from planner.documents.plan_report import PlanReport
from planner.presentation.terminal.plan_rows import free_words
from planner.presentation.terminal.text_wrap import prose

# Fields as plans are written on a screen.
_SHORT = {"zero_stage": "zero", "micro_batch_size": "mbs", "stage_layers": "layers"}

# Told although they may take no time of their own.
_DECIDE_MEMORY = ("offload_activations", "offload_optimizer")


def recipe_rows(found: PublishedRecipe, best: PlanReport) -> Iterator[RenderableType]:
    """The recipe as it would run here, by what it has otherwise than the best plan."""
    recipe = found.recipe
    other = "" if found.same_model else f" for {recipe.model}"
    chips = f"{recipe.accelerators:,} {accelerator(recipe.accelerator).name}"
    whose = f"Published recipe ({recipe.by}{other}, {chips})"
    if found.plan is None:
        yield prose(f"{whose} does not run here: {found.problem}", 0, 2)
        return
    free = free_words(found.plan.memory, best.memory)
    words = [
        f"{_SHORT.get(one.field, one.field.replace('_', ' '))} {one.theirs}".removesuffix(" true")
        for one in found.changes
        if one.saves is None or abs(one.saves) >= TIE or one.field in _DECIDE_MEMORY
    ]
    head = f"{whose}, {_slower(found.slower_by or 0.0)}, {free}"
    yield prose(f"{head}: {' · '.join(words) or 'the same plan'}", 0, 2)


def _slower(by: float) -> str:
    if abs(by) < TIE:
        return "as fast"
    return f"{gap(abs(by))} {'slower' if by > 0 else 'faster'}"
