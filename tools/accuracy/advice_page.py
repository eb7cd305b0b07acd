"""The table of advice as a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cost_models.plans import ParallelPlan
from planner.documents.formats import memory_words, plan_words, seconds
from tools.accuracy.advice import TABLES, RecipeComparison, Row

_MOST_FRAMEWORKS = 4
_HEAD = """\
# What the planner advises{on}

{count} questions, {fit} of them with a plan: what `planner plan` recommends, how much of the memory
it leaves free, which frameworks run the question (the fastest first, and how much slower the best
plan of the others is), and how much slower Recommended is than Fastest. Beside it, where
{publishers} publish a recipe for {same}, their plan and ours, both
priced by this model: nothing that was measured with a recipe is used. Where the two differ, the
reason is the planner's own sentence. Made by `{command}`;
questions and recipes: `{file}`.

## Picks

"""
# Of each table: what it is on, who publishes the recipes, and for what.
_ABOUT = {
    "pretraining": ("", "NVIDIA, AMD or Meta", "the same model, accelerators and batch"),
    "tuning": (" to who fine-tunes", "trainers", "the same model, method and batch"),
}
_RECIPES = """
## Published recipes

Gap: how much longer their plan takes than ours, predicted; below zero where theirs is faster.

"""


def page(table: str, rows: Sequence[Row]) -> str:
    """The whole page of one of the TABLES."""
    on, publishers, same = _ABOUT[table]
    named = "" if table == "pretraining" else f" {table}"
    head = _HEAD.format(
        on=on, publishers=publishers, same=same, file=TABLES[table][0].name,
        command=f"python -m tools.accuracy.advice{named} --write", count=len(rows),
        fit=sum(row.pick is not None for row in rows),
    )  # fmt: skip
    picks = _table(
        ("question", "asked", "pick", "free", "frameworks", "to fastest"),
        (pick_cells(row) for row in rows),
    )
    recipes = _table(
        ("question", "ours", "theirs", "gap", "why", "source"),
        (recipe_cells(row) for row in rows if row.question.recipe),
    )
    return head + picks + _RECIPES + recipes


def pick_cells(row: Row) -> tuple[str, ...]:
    """Name, question, pick, free memory, frameworks and the gap to the fastest."""
    question, training = row.question, row.answer.request["training"]
    asked = [
        question.model,
        f"{question.cluster}, {training['seq_length']:,} tokens",
        f"batch {training['global_batch_size']:,}",
        training["precision"],
    ]
    asked += [question.framework] if question.framework else []
    asked += [question.objective] if row.pick and not row.answer.picks else []
    name = f"{question.name} ({question.kind})"
    if row.pick is None or row.filled is None:
        return (name, ", ".join(asked), row.launch_refusal, "–", "–", "–")
    pick = words(row.pick.plan)
    if row.answer.launch is not None:
        pick = f"{row.answer.launch.framework}: {pick}"
    pick += f"; not launched: {row.launch_refusal}" if row.launch_refusal else ""
    to_fastest = f"{100 * row.slower_by:.1f} %" if row.answer.picks else "–"
    free = f"{100 * (1 - row.filled):.0f} %"
    return (name, ", ".join(asked), pick, free, _runs(row), to_fastest)


def _runs(row: Row) -> str:
    """The frameworks that run the question, the fastest first."""
    each = [
        one.framework + (f" +{100 * one.slower_by:.0f} %" if one.slower_by > 5e-3 else "")
        for one in row.answer.frameworks
    ]
    more = [f"{len(each) - _MOST_FRAMEWORKS} more"] if len(each) > _MOST_FRAMEWORKS else []
    return ", ".join(each[:_MOST_FRAMEWORKS] + more) or "none"


def recipe_cells(row: Row) -> tuple[str, ...]:
    """Name, both plans with their times, the gap, why ours differs, and the source."""
    recipe, beside = row.question.recipe, row.beside
    assert recipe is not None
    source = f"{recipe.by}: {recipe.source}"
    if row.pick is None or beside is None:
        return (row.question.name, row.launch_refusal, "–", "–", "–", source)
    ours = f"{words(row.pick.plan)}; {seconds(row.pick.iteration_time_s)}"
    theirs = f"{recipe.framework}: {words(beside.plan)}"
    gap = "–"
    if beside.report is not None and beside.gap is not None:
        theirs += f"; {seconds(beside.report.iteration_time_s)}"
        gap = f"{round(100 * beside.gap, 1) + 0.0:+.1f} %"  # never -0.0
    return (row.question.name, ours, theirs, gap, why(row, beside), source)


def why(row: Row, beside: RecipeComparison) -> str:
    """Why ours is another plan: what theirs is refused for, what the faster one saves and costs."""
    recipe = row.question.recipe
    assert recipe is not None
    parts = []
    if beside.refusals:
        parts.append(f"Theirs is refused here: {'; '.join(beside.refusals)}")
    parts.append(beside.reason or ("" if beside.report is None else "The same plan"))
    if recipe.remarks:
        parts.append(f"Remark: {'; '.join(recipe.remarks)}")
    return ". ".join(filter(None, parts))


def words(plan: ParallelPlan) -> str:
    """A plan in words, with what dispatches tokens and what hides it."""
    values = plan.model_dump()
    each = [*plan_words(values), *memory_words(values)]
    if plan.ep > 1:
        each.append(f"{plan.moe_dispatcher}{', hidden' if plan.overlap_ep else ''}")
    return " · ".join(each)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(line(cells) for cells in lines)


def line(cells: tuple[str, ...]) -> str:
    """A row of a table of Markdown."""
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"
