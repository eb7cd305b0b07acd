"""Make the catalog's table of published recipes, from what the planner carries of them.

Megatron-Bridge's own recipes, those of the tables of advice, and published runs whose rows say the
whole plan.  `python -m tools.accuracy.write_recipes --write` does so; run it after one of these
changed.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from typing import Any

from cost_models.catalog.hardware import accelerators
from cost_models.catalog.models import models
from cost_models.flops import step_flop
from cost_models.parameters import total_parameters
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner import frameworks
from planner.documents.recipes import FILE, Recipe, shape_of
from planner.documents.scored_runs import scored_runs
from planner.evidence.published_runs.cases import Case, case_of
from planner.evidence.published_runs.runs import PUBLISHED_RUNS, Run, runs_in
from planner.frameworks.megatron_bridge import reader
from planner.frameworks.megatron_bridge.recipes import document
from planner.frameworks.read_results import Unreadable
from tools.accuracy.advice import TABLES, Question, questions

_BRIDGE = "megatron-bridge"
_BRIDGE_YEAR = 2026  # of the commit whose recipes are stored
_NAMED = re.compile(r"_(?:pretrain|peft)_(\d+)gpu_([a-z]+\d+)_")
# The software of a row, the framework here that runs its plan today, and who is told to publish it
# where that is not the framework.
_SOFTWARE = (
    ("bridge", _BRIDGE, ""), ("nemo-mlperf", _BRIDGE, "NeMo in MLPerf"), ("nemo", _BRIDGE, "NeMo"),
    ("titan", "torchtitan", ""), ("maxtext", "maxtext", ""), ("mindspeed", "mindspeed", ""),
    ("nanotron", "nanotron", ""), ("neox", "gpt-neox", ""), ("deepspeed", "deepspeed", ""),
    ("torchtune", "torchtune", ""), ("megatron", "megatron", ""), ("fsdp1", "pytorch", "FSDP"),
    ("fsdp2-te", "pytorch", "NeMo AutoModel"), ("thunder", "pytorch", "LitGPT"),
    ("fms-fsdp", "pytorch", "fms-fsdp"), ("fsdp|ddp", "pytorch", ""),
    ("transformers", "accelerate", "transformers"),
)  # fmt: skip
# Kernels that the software of a row had then: whoever follows its plan has those of today.
_OF_ITS_TIME = ("runtime", "attention_kernel", "cross_entropy", "rank_order")
# Sources that try settings, test or complain: nobody trains as most of their rows do.
_EXPERIMENTS = (
    "bigscience_v100", "bloom_prequel", "internevo_mem", "mcore_issue", "mlm_golden",
    "simumax_a100", "simumax_b200", "titan_issue", "vocabpp", "vtrain_single",
)  # fmt: skip
_TYPES = (
    "gradient_dtype", "gradient_reduce_dtype", "master_weights_dtype", "optimizer_state_dtype",
)  # fmt: skip
_REPOSITORY = re.compile(r"([A-Za-z0-9][\w.-]+/[\w.-]+)(?=[ @])")
_COMMIT_DIGITS = 9
_COMMIT = re.compile(r"@([0-9a-f]{7,40}|v[\d.]+)")
_RELEASE = re.compile(r"(?:container|NeMo) ?(?:release )?(2\d\.\d\d)|ngc(2\d\.\d\d)")
_LONGEST_SOURCE = 200


def recipes() -> Iterator[Recipe]:
    """All that a request may be compared with: of presets, and without repetitions."""
    shapes = {shape_of(entry.spec) for entry in models()}
    seen = set[tuple[Any, ...]]()
    # What was measured comes first: of two alike it says more.
    for one in (*_of_runs(), *_of_bridge(), *_of_advice()):
        plan = tuple(sorted((name, str(value)) for name, value in one.plan.items()))
        key = (one.shape, one.accelerator, one.accelerators, one.precision, one.seq_length, plan)
        if one.shape in shapes and (*key, one.adapters) not in seen:
            seen.add((*key, one.adapters))
            yield one


def _recipe(model: ModelSpec, training: TrainingSpec, plan: ParallelPlan, /, **own: Any) -> Recipe:
    """own: what the document and the plan's row say besides."""
    omitted = {"dp", *own.pop("omitted", ())}
    return Recipe(
        shape=shape_of(model),
        parameters=total_parameters(model),
        adapters=training.freezes,
        precision=training.precision,
        seq_length=training.seq_length,
        global_batch_size=training.global_batch_size,
        training=training.model_dump(exclude_defaults=True, include=set(_TYPES)),
        plan=plan.model_dump(mode="json", exclude_defaults=True, exclude=omitted),
        **own,
    )


def _of_bridge() -> Iterator[Recipe]:
    """Megatron-Bridge's recipes of pre-training and adapters, on accelerators of the catalog."""
    known = {name: one.id for one in accelerators() for name in (one.id, *one.aliases)}
    stored = document()
    # Some recipes of one accelerator are another's by an alias.
    names = {name: name for name in stored["recipes"]} | stored["aliases"]
    for name, own in names.items():
        row, found = stored["recipes"][own], _NAMED.search(name)
        if found is None or found[2] not in known:
            continue
        try:
            launch = {"run.sh": f"torchrun run_recipe.py --recipe {name}\n"}
            read = reader.read(launch, None)
        except Unreadable:  # another model than the presets'
            continue
        yield _recipe(
            read.model, read.training, read.plan,
            name=name, by=frameworks.get(_BRIDGE).title, framework=_BRIDGE,
            release=stored["commit"][:_COMMIT_DIGITS], year=_BRIDGE_YEAR,
            source=f"{stored['repository']} {row['path']}",
            url=f"https://github.com/{stored['repository']}/blob/{stored['commit']}/{row['path']}",
            model=str(row["model"]).rpartition("/")[2], accelerator=known[found[2]],
            accelerators=int(found[1]),
        )  # fmt: skip


def _of_advice() -> Iterator[Recipe]:
    """What vendors and trainers publish for the questions of the tables of advice."""
    for table in TABLES:
        for question in questions(table):
            if question.recipe is not None:
                yield _asked(question)


def _asked(question: Question) -> Recipe:
    request, told = question.request, question.recipe
    assert told is not None
    group = request.cluster.groups[0]
    plan = ParallelPlan.model_validate(told.plan)
    return _recipe(
        request.model, request.training, plan, name=question.name, by=told.by,
        framework=frameworks.get(told.framework).name, release=_release(told.source), year=2026,
        source=told.source, url=_url(told.source), model=question.model,
        accelerator=group.accelerator.id, accelerators=group.accelerators,
    )  # fmt: skip


def _of_runs() -> Iterator[Recipe]:
    """Published runs whose rows say their plan, the newest first."""
    scored = {
        run.id for run in scored_runs() if not run.stack_guessed and run.source not in _EXPERIMENTS
    }
    rows = [run for run in runs_in(PUBLISHED_RUNS) if run.id in scored]
    for run in sorted(rows, key=lambda one: -one.year):
        case = case_of(run)
        if len(case.variants) == 1 and not run.is_layer:
            yield _run(run, case)


def _run(run: Run, case: Case) -> Recipe:
    (plan,), group = case.variants, case.cluster.groups[0]
    stack = run["stack"].lower()
    framework, title = next(
        ((name, said) for words, name, said in _SOFTWARE if re.search(words, stack)), (None, "")
    )
    if framework is not None:
        title = title or frameworks.get(framework).title
    measured = run.iteration_time_s
    assert measured is not None
    rate = step_flop(case.model, case.training) / measured / group.accelerators
    return _recipe(
        case.model, case.training, plan, name=run.id, by=title or run["stack"], framework=framework,
        release=_release(f"{run['stack']} {run['source']} {run.notes}"), year=run.year,
        source=run["source"].partition(";")[0][:_LONGEST_SOURCE], url=_url(run["source"]),
        model=run["model"], accelerator=group.accelerator.id, accelerators=group.accelerators,
        model_flop_per_s=float(f"{rate:.4g}"), omitted=() if framework is None else _OF_ITS_TIME,
    )  # fmt: skip


def _release(text: str) -> str:
    """The release of the software, as its container is named; else the commit of the source."""
    if found := _RELEASE.search(text):
        return str(found[1] or found[2])
    commit = _COMMIT.search(text)
    return commit[1][:_COMMIT_DIGITS] if commit else ""


def _url(source: str) -> str:
    """Where a source stands: its paper, or its repository."""
    if paper := re.search(r"(?:arXiv )?(\d{4}\.\d{5})", source):
        return f"https://arxiv.org/abs/{paper[1]}"
    repository = _REPOSITORY.search(source)
    return f"https://github.com/{repository[1]}" if repository else ""


def text(rows: Iterable[Recipe]) -> str:
    """The file, a row to a line."""
    return "[\n" + ",\n".join(row.model_dump_json(exclude_defaults=True) for row in rows) + "\n]\n"


def main() -> None:
    """Gather the recipes; print how many, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    rows = list(recipes())
    print(f"{len(rows)} recipes of {len({row.shape for row in rows})} models")
    if write:
        FILE.write_text(text(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
