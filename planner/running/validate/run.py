"""A real run of a plan: prepare its folder, start it here, collect, compare.

prepare(folder, request, job)     # may then run anywhere that has torchrun's environment
process.launch(folder, ranks, limits)
compare(request, collect(folder, ranks), ...)
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cost_models.catalog import local
from planner.answers.plans import plan_answers
from planner.documents.answer import EstimateAnswer
from planner.documents.formats import seconds, size
from planner.documents.plan_report import Document
from planner.documents.problems import refuse
from planner.documents.request import PlanRequest
from planner.frameworks.pytorch import FRAMEWORK
from planner.running.validate import report, run_files
from planner.running.validate.as_pytorch_script import Native, native
from planner.running.validate.processes import process
from planner.running.validate.processes.process import NO_SPACE, Limits, RunFailed
from planner.running.validate.run_files import Job, RankResult
from planner.running.validate.scaling.scale_down import Scaled, scaled
from planner.version import __version__

Progress = Callable[[str], None]
REFERENCE = "reference"  # folder of the single-process run

# CONFIG entries for the same model and batch in one process, with nothing split or recomputed.
ALONE = (
    "tp=1", "sequence_parallel=False", "cp=1", "pp=1", "dp_replicate=1", "dp_shard=1",
    "ep=1", "zero_stage=0", "recompute=none", "compile=False",
)  # fmt: skip
# CONFIG entries that make gradients comparable: fp32, and no dropout, whose random numbers depend
# on the parallel layout.
COMPARABLE = (
    "precision=fp32", "gradient_reduce_dtype=fp32", "hidden_dropout=0.0", "attention_dropout=0.0",
    "compile=False",
)  # fmt: skip


class Options(Document):
    """The options of a validation."""

    steps: int = 10
    warmup_steps: int = 2
    check_numerics: bool = False
    tolerance: report.Tolerance = report.Tolerance()
    limits: Limits = Limits()
    port: int | None = None


@dataclass(frozen=True)
class Prepared:
    """A plan scaled down for a run on this machine, with its estimate."""

    as_native: Native
    small: Scaled
    answer: EstimateAnswer
    gpu: bool

    @property
    def exact(self) -> bool:
        """Whether the timed run's gradients can be compared with those of one process."""
        request = self.small.request
        return request.training.precision == "fp32" and not _drops_out(request)


def validate(
    request: PlanRequest,
    options: Options | None = None,
    *,
    output: Path | None = None,
    progress: Progress = lambda text: None,
) -> report.ValidationReport:
    """Train with a request's plan on this machine, and compare with the estimate.

    output: an empty or new folder for the run's files; None: a temporary one. Raises RequestError,
    planner.frameworks.base.Unsupported, planner.answers.plans.plan_answers.IllegalPlan for a plan
    that cannot run, RunFailed for a run that failed.
    """
    require_torch()
    chosen = options or Options()
    prepared = prepare_here(request)
    with own_folder(output) as folder:
        if chosen.check_numerics:
            run_reference(prepared, chosen, folder, progress)
        return run(prepared, chosen, folder, progress)


def prepare_here(request: PlanRequest) -> Prepared:
    """A request's plan scaled to this machine.

    Raises RequestError, planner.frameworks.base.Unsupported and
    planner.answers.plans.plan_answers.IllegalPlan.
    """
    gpu = _has_gpu()
    as_native = native(request, compiled=gpu)
    small = scaled(as_native.request)
    return Prepared(as_native, small, plan_answers.estimate(small.request, small.plan), gpu)


def run_reference(prepared: Prepared, options: Options, folder: Path, progress: Progress) -> None:
    """Write the gradients of one process into the folder, for `run`.  Raises RunFailed."""
    small, prefix = prepared.small.request, "one process for comparison: "
    _run(folder / REFERENCE, small, alone(small), options, prefix, progress, ranks=1)


def run(
    prepared: Prepared, options: Options, folder: Path, progress: Progress
) -> report.ValidationReport:
    """The report of the timed run; with `check_numerics`, call run_reference before.

    Raises RunFailed.
    """
    small = prepared.small
    reference = str(folder / REFERENCE / run_files.GRADIENTS) if options.check_numerics else ""
    errors: dict[str, float] = {}
    if reference and not prepared.exact:
        job = Job(
            words=COMPARABLE, warmup_steps=0, steps=0, profiled_steps=0, memory=False,
            gradients="compare", reference=reference, threads=1,
        )  # fmt: skip
        prefix = "numerics: "
        errors |= _errors(_run(folder / "numerics", small.request, job, options, prefix, progress))
    compared = bool(reference) and prepared.exact
    job = Job(
        warmup_steps=options.warmup_steps, steps=options.steps,
        threads=None if prepared.gpu else 1,
        gradients="compare" if compared else "", reference=reference if compared else "",
    )  # fmt: skip
    results = _run(folder / "run", small.request, job, options, "", progress)
    errors |= _errors(results)
    assert len(results) == small.plan.accelerators
    return compare(prepared.as_native, small, prepared.answer, results, errors, options.tolerance)


# The functional collectives of the script have these names since.
OLDEST_TORCH = (2, 13)
_INSTALL = "pip install torch==2.13.0"


def require_torch() -> None:
    """Raise RequestError without torch, or with one that the training script can't run on."""
    if find_spec("torch") is None:
        raise refuse("", "not_installed", f"a run needs torch: {_INSTALL}")
    torch = version("torch")
    if tuple(int(part) for part in re.findall(r"\d+", torch)[:2]) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        text = f"the training script needs torch {oldest} or later, found {torch[:40]}: {_INSTALL}"
        raise refuse("", "not_installed", text)


def default_tolerance() -> float:
    """The allowed relative error of the step time, by the noise of this kind of machine."""
    return 0.05 if _has_gpu() else 0.20


def _has_gpu() -> bool:
    return local.cluster().groups[0].accelerator.id != local.CPU_ID


def _drops_out(request: PlanRequest) -> bool:
    return request.model.hidden_dropout > 0 or request.model.attention_dropout > 0


def _errors(results: list[RankResult]) -> dict[str, float]:
    """The errors of all gradients, each from the first rank that holds it."""
    return {name: error for rank in results for name, error in rank.gradient_errors.items()}


def alone(request: PlanRequest) -> Job:
    """The job that writes the gradients of one process."""
    layers = f"stage_layers=[{request.model.num_layers}]"
    return Job(
        words=(*COMPARABLE, *ALONE, layers), warmup_steps=0, steps=0, profiled_steps=0,
        memory=False, gradients="write", threads=1,
    )  # fmt: skip


def _run(
    folder: Path, request: PlanRequest, job: Job, options: Options, prefix: str, progress: Progress,
    ranks: int | None = None,
) -> list[RankResult]:  # fmt: skip
    ranks = ranks or request.named_plan.accelerators
    prepare(folder, request, job)
    process.launch(
        folder,
        ranks,
        options.limits,
        port=options.port,
        progress=lambda text: progress(prefix + text),
    )
    return collect(folder, ranks)


@contextmanager
def own_folder(output: Path | None) -> Iterator[Path]:
    """A folder for the files of a run; without `output` a temporary one, which is removed."""
    temporary = output is None
    try:
        if output is None:
            output = Path(tempfile.mkdtemp(prefix="planner-validate-"))
        output.mkdir(parents=True, exist_ok=True)
        if any(output.iterdir()):
            raise refuse("", "file_exists", f"{output} is not empty")
    except OSError as error:
        folder = output or tempfile.gettempdir()
        raise refuse("", "cannot_write", f"cannot write {folder}: {error.strerror}") from None
    try:
        with disk_full_as_run_failure(output):
            yield output.resolve()
    finally:
        if temporary:
            shutil.rmtree(output)


@contextmanager
def disk_full_as_run_failure(folder: Path) -> Iterator[None]:
    """A context that raises RunFailed if this process finds no space for the files of a run."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise RunFailed("no_space", f"could not write into {folder}: {error.strerror}") from None


def prepare(folder: Path, request: PlanRequest, job: Job) -> None:
    """Write the files that the ranks of a run read: the script of the request's plan, and the job.

    Raises OSError, planner.frameworks.base.Unsupported.
    """
    script = FRAMEWORK.render(request, request.named_plan).files[run_files.SCRIPT]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / run_files.SCRIPT).write_text(script, encoding="utf-8")
    run_files.write(folder / run_files.JOB, job)


def collect(folder: Path, ranks: int) -> list[RankResult]:
    """The results of all ranks, by rank.  Raises RunFailed if one left no readable result."""
    results = []
    for rank in range(ranks):
        path = folder / run_files.result_file(rank)
        try:
            results.append(RankResult.model_validate_json(path.read_bytes()))
        except (OSError, ValidationError):
            log = process.tail(process.log_file(folder, rank))
            raise RunFailed("no_result", f"left no result in {path.name}", rank, log) from None
    return results


def compare(
    as_native: Native,
    small: Scaled,
    answer: EstimateAnswer,
    results: list[RankResult],
    errors: dict[str, float],
    tolerance: report.Tolerance,
) -> report.ValidationReport:
    """The report: predictions, measurements and the verdict."""
    estimate, measured = answer.estimate, report.spread(results)
    fullest = report.fullest(results)
    in_time = report.time_terms(estimate, results, measured.median)
    # On a CPU there is no allocator peak, so the peaks of tensors are compared.
    *in_memory, tensors = report.memory_terms(small.request, fullest)
    peak = estimate.memory.allocated_bytes if fullest.allocator_peak_bytes else tensors.predicted
    outcomes = {
        "time": report.judge_time(estimate.iteration_time_s, measured, tolerance.time),
        "memory": report.judge_memory(peak, report.measured_peak_bytes(fullest), tolerance.memory),
    }
    named = {"time": (in_time, seconds), "memory": (in_memory, size)}
    for name, (terms, format_value) in named.items():
        if outcomes[name].verdict != "within":
            reason = f"{outcomes[name].why}; {report.named_term(terms, format_value)}"
            outcomes[name] = report.Outcome(verdict=outcomes[name].verdict, why=reason)
    if errors:
        outcomes["gradients"] = report.judge_gradients(errors)
    return report.ValidationReport(
        request=small.request.document(),
        version=__version__,
        profile=answer.profile,
        predicted_iteration_time_s=estimate.iteration_time_s,
        measured_iteration_time_s=measured,
        predicted_peak_bytes=peak,
        measured_peak_bytes=report.measured_peak_bytes(fullest),
        gradient_max_relative_error=max(errors.values()) if errors else None,
        verdict=report.overall(outcomes),
        environment=environment(results),
        scaled_from={change.field: change.was for change in small.changes},
        caveats=tuple(_caveats(as_native, small, results)),
        outcomes=outcomes,
        tolerance=tolerance,
        predictions_s=_predictions(small.request, answer),
        time_terms=tuple(in_time),
        memory_terms=tuple(in_memory),
        gradient_worst_parameter=max(errors, key=errors.__getitem__) if errors else None,
        losses=results[0].losses,
        ranks=tuple(results),
    )


def _predictions(request: PlanRequest, answer: EstimateAnswer) -> dict[str, float]:
    """Predicted iteration time by profile; for a calibrated profile, also without it."""
    by_profile = {answer.profile.id: answer.estimate.iteration_time_s}
    if answer.profile.kind == "calibrated":
        unprofiled = request.model_copy(update={"profile": None})
        default_answer = plan_answers.estimate(unprofiled, unprofiled.named_plan)
        by_profile[default_answer.profile.id] = default_answer.estimate.iteration_time_s
    return by_profile


def environment(results: list[RankResult]) -> dict[str, Any]:
    """The hosts, devices, processes and versions of a run."""
    return {
        "hosts": sorted({rank.host for rank in results}),
        "devices": sorted({rank.device for rank in results}),
        "processes": len(results),
        "threads_per_process": results[0].threads,
        "cores": local.cpu_cores(),
        "load_average": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.machine()}",
        **results[0].versions,
    }


def _caveats(as_native: Native, small: Scaled, results: list[RankResult]) -> Iterator[str]:
    """Notes on what the run does not show, or does differently from the asked plan."""
    for d in as_native.differences:
        yield f"{d.field}: {_text(d.asked)} ran as {_text(d.used)}: {d.why}"
    for change in small.changes:
        if change.hides:
            yield (
                f"{change.field} scaled from {_text(change.was)} to {_text(change.now)}, which "
                f"hides {change.hides}"
            )
    if results[0].device == "cpu":
        cores = local.cpu_cores()
        if len(results) > cores:
            yield (
                f"{len(results)} processes take turns on {cores} cores: a rank that waits gives "
                "its core to another, so idle time costs less than on accelerators"
            )
        if small.request.model.norm == "rmsnorm":
            yield "a CPU has no fused RMSNorm and keeps its normed rows, which are not estimated"
        yield "CPUs and Gloo, no GPUs and NCCL: kernels, links and overlap are others"
    if results[0].losses[-1] >= results[0].losses[0]:
        yield "the loss did not go down"


def _text(value: Any) -> str:
    from planner.documents.formats import value_words

    return value_words(value) or "none"
