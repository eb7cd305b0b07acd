"""One screen that reads at a glance: at 80 columns, without colour, and piped."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from rich.console import Console, RenderableType

from cost_models.cost_parts import MEMORY_PARTS, TIME_PARTS
from planner.documents.answer import (
    REASONS,
    Baseline,
    Launch,
    LimitConflict,
    Pick,
    PublishedRecipe,
    RecipeChange,
)
from planner.documents.formats import (
    days,
    dollars,
    energy,
    gib,
    seconds,
    share,
    short,
    size,
)
from planner.documents.plan_report import Pipeline
from planner.documents.recipes import Recipe
from planner.documents.request import Bounds, SearchSpec
from planner.documents.scored_runs import Record, scored_runs
from planner.presentation.terminal import bars, screens, tables
from planner.presentation.terminal.plan_rows import RequestSummary
from planner.presentation.terminal.text_wrap import prose
from tests.fixtures import answers

ASKED = RequestSummary(answers.request(), 70_553_706_496)
SCREENS: dict[str, tuple[Callable[..., RenderableType], Any]] = {
    "plan": (screens.plan_screen, answers.plan_answer()),
    "long pipeline": (screens.plan_screen, answers.plan_answer(stages=16)),
    "nothing fits": (screens.plan_screen, answers.nothing_fits()),
    "estimate": (screens.estimate_screen, answers.estimate_answer()),
    "why": (screens.why_screen, answers.why_answer()),
}


def shown(name: str, width: int = 80, colour: bool = False) -> str:
    draw, answer = SCREENS[name]
    return drawn(lambda console: draw(answer, ASKED, console), width, colour)


def drawn(draw: Callable[[Console], RenderableType], width: int = 80, colour: bool = False) -> str:
    page = io.StringIO()
    console = Console(
        file=page,
        width=width,
        color_system="truecolor" if colour else None,
        force_terminal=colour,
        highlight=False,
    )
    console.print(draw(console))
    return page.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80, 100, 200])
@pytest.mark.parametrize("name", SCREENS)
def test_is_one_screen(name: str, width: int) -> None:
    lines = shown(name, width).splitlines()
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= (50 if width >= 80 else 60)


@pytest.mark.parametrize("name", SCREENS)
def test_says_the_same_without_colour(name: str) -> None:
    assert "\x1b" not in shown(name)
    assert "\x1b" in shown(name, colour=True)


def test_plan_screen_says_what_matters() -> None:
    text = shown("plan")
    for words in (
        "llama-3.1-70b", "70.6 B parameters", "8 x 8 H100 SXM 80 GB", "bf16*",
        "reserved memory estimated*",
        "tp 4 +sp · pp 4 · vpp 2 · dp 4", "116,025 tokens/s", "72.3 s", "MFU 41.7 %", "100 days",
        "of 79.6", "<- worst", "W weights", "B backward 37.0 s 51.2 %", "1.31x", "183 of 123,400",
        "2,117 for memory", "1.31x faster than a hand-made plan: tp 8", "causal 40.1 %",
        "57.5 of 79.6 GiB on stage 0, 27.8 % free", "$353k at $2.95 per accelerator-hour*",
        "162 MWh at PUE 1.25*",
    ):  # fmt: skip
        assert words in text, words
    assert "adam\n" in text  # given or defaulted: only what was defaulted is marked
    (ranking,) = (line for line in text.splitlines() if line.startswith("1 "))
    assert ranking.split()[:6] == ["1", "116,025", "72.3", "57.5", "4", "yes"]


def test_bars_are_to_scale() -> None:
    text = shown("plan")
    rows = [line for line in text.splitlines() if line.startswith("  stage")]
    assert len({row.index("|") for row in rows}) == 1  # the capacity is one line down the screen
    first = rows[0].removeprefix("  stage 0 ")
    cells = first.index("|")
    filled = len(first[:cells].rstrip())
    assert filled / cells == pytest.approx(57.5 / 79.6, abs=1.5 / cells)


def test_overflow_crosses_the_capacity() -> None:
    (row,) = (line for line in shown("estimate").splitlines() if line.startswith("  stage 3"))
    assert "L|L" in row
    assert "105.7" in row


def test_long_pipeline_shows_ends_and_worst() -> None:
    text = shown("long pipeline")
    assert "10 more stages" in text
    assert "stage 0 " in text
    assert "stage 15" in text


def test_nothing_fits_says_what_would() -> None:
    text = shown("nothing fits")
    for words in (
        "Nothing fits",
        "stage 0 is 6.1 GiB over",
        "set recompute full, recompute_num",
        "2,117 for memory",
        "layers per stage: 80 layers do not divide over 3 stages",
    ):
        assert words in text


def test_nothing_fits_for_memory_is_said_first() -> None:
    counts = answers.nothing_fits().counts
    examples = {**counts.examples, "memory": "the plan that needs least takes 866 of 79.6 GiB"}
    answer = answers.nothing_fits().model_copy(
        update={"counts": counts.model_copy(update={"examples": examples})}
    )
    lines = drawn(lambda console: screens.plan_screen(answer, ASKED, console)).splitlines()
    after = next(i for i, line in enumerate(lines) if "Nothing fits" in line) + 1
    assert "memory: the plan that needs least takes 866 of 79.6 GiB" in lines[after]


def test_limits_that_no_plan_meets_are_all_that_is_said() -> None:
    conflict = LimitConflict(fields=("pp", "vpp"), text="pp 1 and vpp 2: chunks need stages")
    answer = answers.nothing_fits().model_copy(update={"conflicts": (conflict,)})
    text = drawn(lambda console: screens.plan_screen(answer, ASKED, console))
    assert "--pp and --vpp: pp 1 and vpp 2: chunks need stages" in text
    assert "layers per stage" not in text


def test_no_code_and_no_python_in_words() -> None:
    for name in SCREENS:
        text = shown(name)
        assert not any(f" {code}" in text for code in REASONS if "_" in code), name
        assert "['" not in text
    change = answers.why_answer().smallest_change
    assert change is not None
    values = {"recompute_modules": ["layernorm", "mlp"], "offload_optimizer": True}
    answer = answers.why_answer().model_copy(
        update={"smallest_change": change.model_copy(update={"set": values})}
    )
    text = drawn(lambda console: screens.why_screen(answer, ASKED, console))
    assert "set recompute_modules layernorm,mlp, offload_optimizer true: peak 60.0 GiB" in text


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("name", SCREENS)
def test_lines_break_between_pieces(name: str, width: int) -> None:
    """A number never ends a line, and what goes on is indented."""
    lines = [line.rstrip() for line in shown(name, width).splitlines()]
    for line, after in pairwise(lines):
        if line.endswith((" ·", ",")) and not line.endswith("| "):
            assert after.startswith("  "), (line, after)
            assert not after.strip().startswith(("GiB", "tokens/s", "%")), (line, after)


def test_little_room_is_marked() -> None:
    best = answers.report()
    memory = best.memory.model_copy(update={"capacity_bytes": best.memory.peak_bytes * 1.01})
    tight = best.model_copy(update={"memory": memory})
    answer = answers.plan_answer().model_copy(update={"best": tight})
    text = drawn(lambda console: screens.plan_screen(answer, ASKED, console))
    assert "57.5 of 58.1 GiB on stage 0, 1.0 % free, tight" in text
    needed = memory.model_copy(update={"needed_bytes": 0.9 * memory.peak_bytes})
    cached = answer.model_copy(update={"best": best.model_copy(update={"memory": needed})})
    text = drawn(lambda console: screens.plan_screen(cached, ASKED, console))
    assert "10.9 % free but for cache" in " ".join(text.split())
    assert "tight" not in text
    assert "tight" not in shown("plan")


def test_opened_axes_are_columns() -> None:
    search = SearchSpec(
        open=("cp_kind", "rank_order"),
        limits={
            "schedule": Bounds(values=("1f1b", "gpipe")),
            "etp": Bounds(min=1, max=2),
            "recompute": Bounds(values=("none", "full")),
            "zero_stage": Bounds(values=(1,)),
        },
    )
    answer = answers.plan_answer()
    wide = drawn(lambda console: tables.ranking(answer, search, 120), 120)
    heading = " ".join(wide.splitlines()[:2])
    for word in ("etp", "schedule", "cp kind", "rank order", "recompute"):
        assert all(part in heading for part in word.split()), word
    narrow = drawn(lambda console: tables.ranking(answer, search, 80))
    assert "in all of them: " in narrow
    assert "rank order tp-cp-ep-dp-pp" in narrow
    assert "tokens/s" in narrow.splitlines()[0] + narrow.splitlines()[1]


def test_plans_that_differ_are_never_rows_of_the_same_words() -> None:
    """By the loss alone, say; what else is alike makes no column."""
    answer = answers.plan_answer()
    first = answer.plans[0]
    loss = {"cross_entropy": "unfused"}
    twin = first.model_copy(update={"plan": first.plan.model_copy(update=loss)})
    two = answer.model_copy(update={"plans": (first, twin), "contenders": ()})
    text = drawn(lambda console: tables.ranking(two, SearchSpec(), 120), 120)
    assert "entropy" in text
    assert "unfused" in text
    assert "entropy" not in drawn(lambda console: tables.ranking(answer, SearchSpec(), 120), 120)


def test_sentences_keep_numbers_whole() -> None:
    text = "stage 0 needs 151.0 GiB of 79.6 GiB, with pp 2 and 12 micro-batches"
    for width in range(20, 80):
        page = drawn(lambda console: prose(text, hanging=2), width)
        for pair in ("151.0 GiB", "79.6 GiB", "pp 2", "12 micro-batches", "stage 0"):
            assert any(pair in line for line in page.splitlines()), (width, pair)
        assert all(line.startswith("  ") for line in page.splitlines())


def test_every_part_has_a_letter() -> None:
    for parts, styles in ((MEMORY_PARTS, bars._MEMORY_STYLES), (TIME_PARTS, bars._TIME_STYLES)):
        assert list(parts) == list(styles)
        letters = [letter for letter, _ in styles.values()]
        assert len(set(letters)) == len(letters)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (short(70_553_706_496), "70.6 B"),
        (short(115_234), "115 k"),
        (short(9_999), "9,999"),
        (short(1.8e12), "1.8 T"),
        (short(0), "0"),
        (seconds(72.3), "72.3 s"),
        (seconds(0.8123), "812 ms"),
        (seconds(4.5e-5), "45.0 us"),
        (seconds(0), "0 s"),
        (gib(85_470_000_000), "79.6"),
        (size(85_470_000_000), "79.6 GiB"),
        (size(13 * 2**20), "13.0 MiB"),
        (share(0.417), "41.7 %"),
        (days(100.2), "100 days"),
        (days(0.5), "12.0 hours"),
        (dollars(353_000), "$353k"),
        (dollars(12.5), "$12.5"),
        (energy(162_000), "162 MWh"),
        (energy(2.5e6), "2.50 GWh"),
        (energy(3.0), "3.00 kWh"),
    ],
)
def test_numbers(text: str, expected: str) -> None:
    assert text == expected


def test_schedule_says_who_runs_it() -> None:
    pipeline = Pipeline(
        schedule="v-half",
        title="V-Half",
        synchronous=True,
        staleness="",
        frameworks=(),
        closed_form="none",
        shown="scaled simulation",
        simulated_iteration_time_s=73.5,
    )
    best = answers.report(schedule="v-half").model_copy(update={"pipeline": pipeline})
    answer = answers.plan_answer().model_copy(update={"best": best, "plans": (best, best)})
    text = drawn(lambda console: screens.plan_screen(answer, ASKED, console), 100)
    assert "v-half · available in no framework known here · 73.5 s simulated" in text
    assert text.count(" v-half ") == 3  # the plan, and a row of the ranking each
    pipeline = pipeline.model_copy(update={"frameworks": ("torch", "torchtitan")})
    best = best.model_copy(update={"pipeline": pipeline})
    answer = answer.model_copy(update={"best": best})
    text = drawn(lambda console: screens.plan_screen(answer, ASKED, console), 100)
    assert "v-half · available in torch and 1 other" in text


def test_the_picks_and_the_best_of_each_framework_stand_below() -> None:
    other = answers.report(schedule="interleaved-1f1b").model_copy(update={"id": "another"})
    best = answers.report()
    launches = tuple(
        Launch(framework=name, slower_by=slower, plan=plan)
        for name, slower, plan in (
            ("megatron", 0.0, best),
            ("torchtitan", 0.25, other),
            ("unsloth", -0.1, other),
        )
    )
    pick = Pick(name="recommended", plan=other, slower_by=0.004, why="does without recompute")
    update = {"best": best, "frameworks": launches, "picks": (pick,)}
    answer = answers.plan_answer().model_copy(update=update)
    text = drawn(lambda console: screens.plan_screen(answer, ASKED, console), 100)
    assert "Recommended, 0.40 % slower" in text
    assert ": does without recompute " in " ".join(text.split())
    assert "unsloth 10.0 % faster, but by its code alone" in text
    assert "Frameworks: megatron · torchtitan 25.0 % slower" in text
    search = ASKED.request.search.model_copy(update={"objective": "memory_headroom"})
    lean = replace(ASKED, request=ASKED.request.model_copy(update={"search": search}))
    text = drawn(lambda console: screens.plan_screen(answer, lean, console), 100)
    free = share(1 - best.memory.peak_bytes / best.memory.capacity_bytes)
    assert f"Frameworks: megatron {free} free · torchtitan {free} free" in text


def test_a_pick_tells_all_that_it_has_otherwise_and_its_memory_in_the_same_measure() -> None:
    """Layers and kernels too; and where the best plan's cache is left out, so is the pick's."""
    best = answers.report()
    room = best.memory.capacity_bytes
    cached = best.memory.model_copy(
        update={"peak_bytes": 0.995 * room, "needed_bytes": 0.85 * room}
    )
    own = best.memory.model_copy(update={"peak_bytes": 0.92 * room, "needed_bytes": 0.8 * room})
    plan = best.plan.model_copy(update={"cross_entropy": "liger"})
    assert plan.cross_entropy != best.plan.cross_entropy
    other = best.model_copy(update={"id": "another", "plan": plan, "memory": own})
    picks = tuple(
        Pick(name=name, plan=other, slower_by=0.01, why=f"the {name}")
        for name in ("recommended", "most headroom")
    )
    for memory, free in ((cached, "20.0 % free but for cache: "), (own, "8.0 % free: ")):
        update = {"best": best.model_copy(update={"memory": memory}), "picks": picks}
        answer = answers.plan_answer().model_copy(update=update)
        text = drawn(partial(screens.plan_screen, answer, ASKED), 100)
        told = " ".join(text.split())
        # A plan that is both is told once.
        assert f"Recommended and most headroom, 1.0 % slower, {free}tp " in told
        assert "cross entropy liger: the recommended; the most headroom" in told
        assert told.count("the most headroom") == 1
        after = told.partition("Recommended and")[2]
        assert ("layers " in after.partition("cross entropy")[0]) is (plan.pp > 1)


RECIPE = Recipe(
    name="a_recipe", by="Megatron-Bridge", framework="megatron-bridge", release="26.08", year=2026,
    source="NVIDIA-NeMo/Megatron-Bridge docs", url="https://github.com/NVIDIA-NeMo/Megatron-Bridge",
    model="Llama-3-70B", shape="", parameters=70, adapters=False, accelerator="h100-sxm-80gb",
    accelerators=64, precision="bf16", seq_length=8192, global_batch_size=128, plan={"tp": 4},
    model_flop_per_s=4e14,
)  # fmt: skip


@pytest.mark.parametrize("width", [80, 120])
def test_what_others_do_is_told_field_by_field(width: int) -> None:
    """Beside it, the record is told without what the plan has otherwise than its run."""
    other, best = answers.report(schedule="interleaved-1f1b"), answers.report()
    changes = (
        RecipeChange(field="vpp", theirs="5", ours="7", saves=0.012),
        RecipeChange(field="micro_batch_size", theirs="1", ours="2", saves=-0.03),
        RecipeChange(field="pp", theirs="4", ours="8", saves=None),
        RecipeChange(field="offload_activations", theirs="true", ours="false", saves=0.0),
        RecipeChange(field="overlap_p2p", theirs="true", ours="false", saves=0.0),
    )
    recipe = PublishedRecipe(
        recipe=RECIPE, same_model=True, forced=("dp 16 -> 4",), plan=other, slower_by=0.0312,
        changes=changes, saved_s={"forward": 0.4, "bubble": -0.1},
    )  # fmt: skip
    answer = answers.plan_answer().model_copy(update={"best": best, "recipe": recipe})
    text = drawn(lambda console: screens.plan_screen(answer, ASKED, console), width)
    told = " ".join(text.split())
    assert "Published recipe (Megatron-Bridge, 64 H100 SXM5 80GB), 3.1 % slower, " in told
    assert " free: vpp 5 · mbs 1 · pp 4 · offload activations " in told
    assert "overlap" not in told

    fails = PublishedRecipe(recipe=RECIPE, same_model=False, problem="stage 0 needs 90.0 GiB")
    answer = answer.model_copy(update={"recipe": fails})
    told = " ".join(drawn(lambda c: screens.plan_screen(answer, ASKED, c), width).split())
    whose = "Published recipe (Megatron-Bridge for Llama-3-70B, 64 H100 SXM5 80GB)"
    assert f"{whose} does not run here: stage 0 needs 90.0 GiB" in told

    run = scored_runs()[0]
    record = Record(run=run, same_model=True, differs=("tp 8 -> 4",))
    evidence = answers.evidence()
    for flop_per_s, differences in ((1.0, 1), (1e18, 0)):
        run = run.model_copy(update={"model_flop_per_s": flop_per_s})
        changed = evidence.model_copy(update={"record": record.model_copy(update={"run": run})})
        beside = answer.model_copy(update={"evidence": changed})
        told = drawn(partial(screens.plan_screen, beside, ASKED), width)
        assert "TFLOP/s:" in told
        assert told.count("tp 8 -> 4") == differences


@pytest.mark.parametrize("width", [60, 100])
def test_a_headline_that_cannot_be_launched_says_so_first(width: int) -> None:
    answer = answers.plan_answer().model_copy(update={"no_launch": "nothing starts there"})
    text = drawn(lambda console: screens.plan_screen(answer, ASKED, console), width)
    before, said, _ = text.partition(
        "No framework here can launch this plan\n  nothing starts there"
    )
    assert said
    assert "Best plan" not in before


def test_the_evidence_and_the_rival_are_told() -> None:
    plan, estimate = shown("plan", 100), shown("estimate", 100)
    run = answers.evidence().nearest[0]
    for text in (plan, estimate):
        assert "evidence     measured on H100 SXM 80 GB with Megatron-Core" in text
        assert f"nearest: {run.model} on {run.accelerators}, tp {run.tp}" in text
        assert f"predicted {seconds(run.predicted_s)}, measured {seconds(run.measured_s)}" in text
    assert "TP 4 beats TP 8 by 9.8 %: saves 14.2 s of TP communication" in plan
    elsewhere = answers.request().cluster.model_copy(update={"name": "other"})
    group = elsewhere.groups[0]
    chip = group.accelerator.model_copy(update={"id": "mi300x"})
    groups = (group.model_copy(update={"accelerator": chip}),)
    request = answers.request().model_copy(
        update={"cluster": elsewhere.model_copy(update={"groups": groups})}
    )
    answer = answers.estimate_answer().model_copy(update={"evidence": answers.evidence("unseen")})
    asked = RequestSummary(request, ASKED.parameters)
    text = drawn(lambda console: screens.estimate_screen(answer, asked, console), 100)
    assert f"nearest: {run.model} on {run.accelerators} x H100 SXM5 80GB" in text


def test_asynchronous_schedule_says_how_old_its_weights_are() -> None:
    pipeline = Pipeline(
        schedule="pipedream-2bw",
        title="PipeDream-2BW",
        synchronous=False,
        staleness="one update old",
        frameworks=(),
        closed_form="all",
        shown="closed form",
        simulated_iteration_time_s=None,
    )
    best = answers.report(vpp=1, schedule="pipedream-2bw")
    answer = answers.estimate_answer().model_copy(
        update={"estimate": best.model_copy(update={"pipeline": pipeline})}
    )
    text = drawn(lambda console: screens.estimate_screen(answer, ASKED, console))
    assert "asynchronous: one update old" in text


def test_a_baseline_of_equal_words_says_what_differs() -> None:
    answer = answers.plan_answer()
    assert answer.best is not None
    plan = answer.best.plan.model_copy(update={"overlap_grad_reduce": False})
    report = answer.best.model_copy(update={"plan": plan})
    for speedup, words in (
        (1.25, "1.25x faster than"), (1.004, "as fast as"), (0.9, "0.90x the speed of"),
    ):  # fmt: skip
        baseline = Baseline(rule="by hand", report=report, speedup=speedup)
        compared = answer.model_copy(update={"baseline": baseline})
        text = drawn(lambda console, now=compared: screens.plan_screen(now, ASKED, console))
        assert f"{words} a hand-made plan" in text
        assert "overlap_grad_reduce false" in text
