"""Validation of a plan on one node of its cluster: a script to run there, and its results.

Nothing runs here: the user runs the script on the node and sends back the result files of the
ranks, so the time is measured on the plan's own accelerators and links.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from planner.answers.plans import plan_answers
from planner.documents.loading import plain
from planner.documents.plan_report import Document
from planner.documents.problems import RequestError, problem, refuse, wrong_type
from planner.documents.request import PlanRequest
from planner.documents.typed_values import field_problems, require_object
from planner.frameworks import bash_writer
from planner.inputs.requests.parser import parse_request
from planner.running.validate.as_pytorch_script import Difference, native
from planner.running.validate.executors import remote
from planner.running.validate.report import Tolerance, ValidationReport
from planner.running.validate.run import Options, compare
from planner.running.validate.run_files import RankResult, result_file
from planner.running.validate.scaling.scale_down import Change, on_one_node

FOLDER = "planner-run"  # folder of the script's files, below the directory that it is started in
NAME = "validate_one_node.sh"
FIELDS = ("request", "ranks")
MOST_RANKS = 64


class OneNode(Document):
    """A script for one node; request: of its scaled-down training; changes: the fields scaled down.

    results: the files that its ranks write, to send back; predicted_s: time of a step there.
    """

    name: str
    text: str
    request: dict[str, Any]
    predicted_s: float
    fits: bool
    changes: tuple[Change, ...]
    differences: tuple[Difference, ...]
    results: tuple[str, ...]


def one_node(request: PlanRequest, options: Options | None = None) -> OneNode:
    """The script for a request.  Raises RequestError, planner.frameworks.base.Unsupported."""
    as_run = native(request)
    small = on_one_node(as_run.request)
    bundle = remote.render("torchrun", [small.request], options or Options())
    estimate = plan_answers.estimate(small.request, small.plan).estimate
    text = bash_writer.one_script(bundle).replace("$(mktemp -d)", f"$PWD/{FOLDER}")
    return OneNode(
        name=NAME,
        text=text,
        request=small.request.document(),
        predicted_s=estimate.iteration_time_s,
        fits=estimate.fits,
        changes=small.changes,
        differences=as_run.differences,
        results=tuple(f"{FOLDER}/{result_file(rank)}" for rank in range(small.plan.accelerators)),
    )


def judged(document: Any) -> ValidationReport:
    """The returned results compared with the estimate.  Raises RequestError.

    document: {"request": the request of the script, "ranks": [the ranks' result documents]}.
    """
    require_object("", document, "an object")
    problems = field_problems(document, FIELDS, FIELDS)
    if problems:
        raise RequestError(problems)
    request = parse_request(plain(document["request"], "/request"), need_plan=True)
    as_run = native(request)
    small = on_one_node(as_run.request)
    results = _results(plain(document["ranks"], "/ranks"), small.plan.accelerators)
    answer = plan_answers.estimate(small.request, small.plan)
    return compare(as_run, small, answer, results, {}, Tolerance())


def _is_complete(result: RankResult) -> bool:
    """Whether a rank took steps and measured memory, as the script does."""
    return bool(result.amounts is not None and result.step_s and result.losses)


def _results(ranks_left: Any, ranks: int) -> list[RankResult]:
    """The result of every rank, in order of rank.  Raises RequestError."""
    is_list = isinstance(ranks_left, list | tuple)
    if not is_list or not all(isinstance(d, Mapping) for d in ranks_left):
        raise RequestError([wrong_type("/ranks", "a list of what ranks left", ranks_left)])
    by_rank: dict[int, RankResult] = {}
    problems = []
    for i, item in enumerate(ranks_left[:MOST_RANKS]):
        try:
            result = RankResult.model_validate(item)
        except ValidationError:
            result = None
        if result is None or not _is_complete(result):
            detail = f"file {i + 1} is no rank-N.json of the script"
            problems.append(problem(f"/ranks/{i}", "not_a_result", detail))
        else:
            by_rank[result.rank] = result
    if problems:
        raise RequestError(problems)
    if sorted(by_rank) != list(range(ranks)):
        names = ", ".join(result_file(rank) for rank in range(ranks) if rank not in by_rank)
        detail = f"{ranks} ranks were to run; {names or 'too many'} " + (
            "is missing" if names else "came back"
        )
        raise refuse("/ranks", "incomplete", detail)
    return [by_rank[rank] for rank in range(ranks)]
