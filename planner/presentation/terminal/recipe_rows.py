"""What others do, in a few lines of a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from cost_models.catalog.hardware import accelerator
from planner.answers.plans.other_degrees import saved_words
from planner.documents.answer import PublishedRecipe, RecipeChange
from planner.documents.formats import (
    memory_words,
    plan_words,
    seconds,
    share,
    signed_share,
    tflop_per_s,
)
from planner.documents.scored_runs import Evidence
from planner.presentation.terminal.text_wrap import Flow, prose

# The share of a step from which a change is told, and that plans may differ by and be as fast.
_WORTH = 0.0005
# Fields as plans are written on a screen.
_SHORT = {"zero_stage": "zero", "micro_batch_size": "mbs"}


def recipe_rows(found: PublishedRecipe, evidence: Evidence | None) -> Iterator[RenderableType]:
    """The recipe as it would run here, whose it is, and what the best plan has otherwise."""
    if found.plan is None:
        yield prose(f"Published recipe, does not run here: {found.problem}", 0, 2)
    else:
        memory, plan = found.plan.memory, found.plan.plan.model_dump()
        free = 1.0 - memory.peak_bytes / memory.capacity_bytes
        traded = [word for word in memory_words(plan) if word != "recompute none"]
        time = f"{seconds(found.plan.iteration_time_s)}, {_slower(found.slower_by or 0.0)}"
        head = f"Published recipe, {time}, {share(free)} free: "
        yield Flow([*plan_words(plan), *traded], indent=2, head=head)
    yield Flow(_source(found, evidence), " ", indent=2, head="  ", style="dim")
    told = [one for one in found.changes if one.saves is None or abs(one.saves) >= _WORTH]
    if told:
        words = saved_words(found.saved_s)
        changes = ", ".join(_changes(told))
        yield prose(f"best plan instead: {changes}{'; ' * bool(words)}{words}", 2, 2)


def _slower(by: float) -> str:
    if abs(by) < _WORTH:
        return "as fast"
    return f"{100 * abs(by):.2f} % {'slower' if by > 0 else 'faster'}"


def _source(found: PublishedRecipe, evidence: Evidence | None) -> Iterator[str | Text]:
    """Whose it is and for what, where it stands, and what it reached there."""
    recipe = found.recipe
    yield f"{recipe.by} {recipe.release}".rstrip()
    chip = accelerator(recipe.accelerator).name
    other = "" if found.same_model else "the nearest model, "
    yield f"for {other}{recipe.model} on {recipe.accelerators:,} {chip},"
    yield recipe.name
    if recipe.url:
        repository = "/".join(recipe.url.removeprefix("https://").split("/")[:3])
        yield Text(f"({repository})", f"dim link {recipe.url}")
    record = evidence.record if evidence else None
    if recipe.model_flop_per_s and not (record and record.run.id == recipe.name):
        yield f"reached {tflop_per_s(recipe.model_flop_per_s)} TFLOP/s each;"
    if found.forced:
        yield f"here {', '.join(found.forced)}"


def _changes(told: Sequence[RecipeChange]) -> Iterator[str]:
    """Recompute full -> none (-12.1 % alone): of the time; unsaid where there is one change."""
    said = " alone"
    for one in told:
        words = f"{_SHORT.get(one.field, one.field.replace('_', ' '))} {one.theirs} -> {one.ours}"
        if one.saves is not None and len(told) > 1:
            words += f" ({signed_share(-one.saves)}{said})"
            said = ""
        yield words
