"""The options of the command line that are fields of a request, and the document they make.

Every option is named as its field and says where in the request it belongs.  The table is
written out, not read from the specs: `planner --help` must not load the physics.  A test holds
it against the specs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, Literal

import typer

Part = Literal["", "cluster", "training", "search", "plan", "pipeline"]


@dataclass(frozen=True)
class Field:
    """One option: the field's name, the part of the request that has it, and its help."""

    name: str
    part: Part
    help: str
    metavar: str = "VALUE"
    boolean: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


_REQUEST = (
    Field("model", "", "preset, or a Hugging Face config.json", "NAME|FILE"),
    Field("cluster", "", "preset, shorthand such as 8x8xh100-sxm, or local", "NAME"),
    Field("profile", "", "efficiency profile; default: the accelerator's", "NAME"),
    Field("site", "", "whose learned runs correct the times (planner learn)", "NAME"),
)
_CLUSTER = (
    Field("nodes", "cluster", "nodes of a cluster preset", "INT"),
    Field("reserved_bytes_per_accelerator", "cluster", "instead of driver, NCCL, gaps", "BYTES"),
    Field("price_usd_per_accelerator_hour", "cluster", "for the cost", "USD"),
    Field("pue", "cluster", "power usage effectiveness of the site", "NUMBER"),
)
_TRAINING = (
    Field("seq_length", "training", "tokens per sequence", "INT"),
    Field("global_batch_size", "training", "sequences per optimizer step", "INT"),
    Field("precision", "training", "bf16, fp16, fp8, fp4, fp32", "NAME"),
    Field("fp8_recipe", "training", "tensorwise, delayed, rowwise, blockwise, mxfp8", "NAME"),
    Field("fp8_param_gather", "training", "weights stored and gathered in fp8 (Megatron)"),
    Field("tokens", "training", "of the whole training, for days, cost and energy", "NUMBER"),
    Field("gradient_dtype", "training", "gradient accumulation: fp32, bf16, fp16", "NAME"),
    Field("gradient_reduce_dtype", "training", "gradient reduction: fp32, bf16, fp16", "NAME"),
    Field("master_weights_dtype", "training", "fp32, none", "NAME"),
    Field("optimizer_state_dtype", "training", "fp32, bf16, fp8", "NAME"),
    Field("optimizer", "training", "adam, adam_8bit, sgd, adafactor, muon", "NAME"),
    Field("lora_rank", "training", "rank of adapters beside frozen matrices; 0: none", "INT"),
    Field("lora_targets", "training", "linear_qkv, linear_proj, ... or q_proj, ...", "NAMES"),
    Field("lora_dropout", "training", "before the adapters", "NUMBER"),
    Field("frozen", "training", "parts that are not trained: embedding, head, ...", "NAMES"),
    Field("frozen_dtype", "training", "as trained, nf4 (QLoRA)", "NAME"),
    Field("loss", "training", "next_token, dpo, reward, distillation", "NAME"),
    Field("teacher_parameters", "training", "of a dense teacher, in distillation", "NUMBER"),
    Field("encoder_tokens", "training", "image positions in a sequence", "INT"),
    Field("sample_lengths", "training", "equally likely ones, such as quantiles", "INTS"),
    Field("packing", "training", "packed, padded; with sample lengths", "NAME"),
)
_SEARCH = (
    Field("objective", "search", "tokens_per_s, memory_headroom, cost", "NAME"),
    Field("framework", "search", "only plans that this framework runs", "NAME"),
    Field("top_k", "search", "plans to list", "INT"),
    Field("memory_risk", "search", "largest chance to run out of memory, such as 5%", "SHARE"),
    Field("open", "search", "further axes to search, such as cp_kind,rank_order", "NAMES"),
)
_PLAN = (
    Field("tp", "plan", "tensor parallel", "INT"),
    Field("sequence_parallel", "plan", "norms and dropout split over tp", boolean=True),
    Field("cp", "plan", "context parallel", "INT"),
    Field("cp_kind", "plan", "p2p, all_gather, a2a", "NAME"),
    Field("pp", "plan", "pipeline stages", "INT"),
    Field("vpp", "plan", "model chunks per pipeline rank", "INT"),
    Field("dp", "plan", "data parallel; follows from the others", "INT"),
    Field("dp_shard", "plan", "ranks of one ZeRO shard group; 0: all", "INT"),
    Field("ep", "plan", "expert parallel", "INT"),
    Field("etp", "plan", "tensor parallel of the experts", "INT"),
    Field("zero_stage", "plan", "0 to 3", "INT"),
    Field("reshard_after_forward", "plan", "ZeRO-3: free weights after forward", boolean=True),
    Field("micro_batch_size", "plan", "sequences per micro-batch", "INT"),
    Field("recompute", "plan", "none, selective, full", "NAME"),
    Field("recompute_modules", "plan", "when selective: core_attn, mlp, ...", "NAMES"),
    Field("recompute_method", "plan", "when full: block, uniform", "NAME"),
    Field("recompute_num_layers", "plan", "when full: how many", "INT"),
    Field("recompute_layers", "plan", "when full by block: of each virtual stage", "INTS"),
    Field("schedule", "plan", "gpipe, 1f1b, interleaved-1f1b", "NAME"),
    Field("first_stage_layers", "plan", "0: as the middle stages", "INT"),
    Field("last_stage_layers", "plan", "0: as the middle stages", "INT"),
    Field("stage_layers", "plan", "layers of every stage, or virtual stage", "INTS"),
    Field("rank_order", "plan", "tp-cp-ep-dp-pp, tp-cp-ep-pp-dp", "NAME"),
    Field("offload_optimizer", "plan", "optimizer states in host memory", boolean=True),
    Field("offload_activations", "plan", "activations in host memory", boolean=True),
    Field("offload_num_layers", "plan", "of so many layers of each stage; 0: of all", "INT"),
    Field("attention_kernel", "plan", "flash, flash2, flash1, unfused", "NAME"),
    Field("cross_entropy", "plan", "fused, in_place, unfused", "NAME"),
    Field("moe_dispatcher", "plan", "alltoall, allgather, deepep, hybridep", "NAME"),
    Field("overlap_grad_reduce", "plan", "hide the gradient reduction", boolean=True),
    Field("overlap_param_gather", "plan", "hide the weight gathering", boolean=True),
    Field("overlap_tp", "plan", "hide tensor-parallel collectives", boolean=True),
    Field("overlap_p2p", "plan", "hide pipeline messages", boolean=True),
    Field("dynamic_cp", "plan", "packed samples over as few ranks as they need", boolean=True),
    Field("overlap_ep", "plan", "hide the experts' exchanges", boolean=True),
    Field("runtime", "plan", "megatron, torch, deepspeed, megatron-2021, ...", "NAME"),
    Field("compile", "plan", "torch.compile fuses memory-bound kernels", boolean=True),
)
_PIPELINE = (
    Field("stages", "pipeline", "pipeline ranks", "INT"),
    Field("micro_batches", "pipeline", "micro-batches of a step", "INT"),
    Field("chunks", "pipeline", "model chunks per rank", "INT"),
    Field("forward_s", "pipeline", "forward of one chunk", "SECONDS"),
    Field("input_grad_s", "pipeline", "gradient of one chunk's input", "SECONDS"),
    Field("weight_grad_s", "pipeline", "gradient of one chunk's weights", "SECONDS"),
    Field("p2p_s", "pipeline", "latency of a message; default 0", "SECONDS"),
    Field("p2p_transfer_s", "pipeline", "a message keeps its link busy; default 0", "SECONDS"),
    Field("blocking", "pipeline", "a sender waits until its message is out", boolean=True),
)
# Not of a request: a pipeline by itself, with times in place of a model.
PIPELINE = {field.name: field for field in _PIPELINE}
FIELDS = {field.name: field for field in (*_REQUEST, *_CLUSTER, *_TRAINING, *_SEARCH, *_PLAN)}
LISTS = frozenset(
    {
        "recompute_modules",
        "recompute_layers",
        "stage_layers",
        "open",
        "lora_targets",
        "frozen",
        "sample_lengths",
    }
)


def _names(kind: str) -> Callable[[str], list[str]]:
    """What completes the name of a catalog entry."""

    def complete(incomplete: str) -> list[str]:
        from planner.answers.catalog import LISTINGS

        return [entry.id for entry in LISTINGS[kind]() if entry.id.startswith(incomplete)]

    return complete


COMPLETIONS = {
    "model": _names("models"),
    "cluster": _names("clusters"),
    "framework": _names("frameworks"),
    "schedule": _names("schedules"),
}
_PANELS = {
    "": "Model and cluster",
    "cluster": "Model and cluster",
    "training": "Training",
    "search": "Search",
    "pipeline": "A pipeline by itself, without a model",
}


def request_options(plan_panel: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command an option per field of a request.

    The command takes them as one argument, `given`: what was set, by field name.
    """
    return _options(FIELDS.values(), plan_panel, "given")


def pipeline_options() -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command an option per field of a bare pipeline, as one argument, `pipeline`."""
    return _options(PIPELINE.values(), "", "pipeline")


def _options(
    fields: Collection[Field], plan_panel: str, into: str
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @wraps(command)
        def run(**arguments: Any) -> int:
            values = {field.name: arguments.pop(field.name) for field in fields}
            given = {name: value for name, value in values.items() if value is not None}
            return command(**{into: given}, **arguments)

        own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [p for p in own if p.name != into]
        parameters += [_parameter(field, plan_panel) for field in fields]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def _parameter(field: Field, plan_panel: str) -> inspect.Parameter:
    panel = _PANELS.get(field.part, plan_panel)
    if field.boolean:
        option = typer.Option(help=field.help, rich_help_panel=panel, show_default=False)
        annotation: Any = Annotated[bool | None, option]
    else:
        # Text, so that a wrong value is reported like one in a file: with its place.
        option = typer.Option(
            help=field.help, metavar=field.metavar, rich_help_panel=panel, show_default=False,
            autocompletion=COMPLETIONS.get(field.name),
        )  # fmt: skip
        annotation = Annotated[str | None, option]
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def merge(document: Mapping[str, Any], given: Mapping[str, Any], *, limits: bool) -> dict[str, Any]:
    """The document with the given options laid over it.

    limits: plan fields bound the search (`8`, `1..8`, `1,2,4`); otherwise they make the plan.
    """
    merged = dict(document)
    for name, value in given.items():
        parsed = value if isinstance(value, bool) else read(name, value, limits)
        target = _target(FIELDS[name], limits)
        if not target:
            merged[name] = parsed
            continue
        section = {} if merged.get(target) is None else merged[target]
        if target == "cluster" and isinstance(section, str):
            section = {"preset": section}
        # A part that is no object stays as it is: the parser reports it.
        if isinstance(section, dict):
            merged[target] = _without_limit(section, name) | {name: parsed}
    return merged


def _without_limit(section: dict[str, Any], name: str) -> dict[str, Any]:
    """A part of the request without the limit that an option replaces."""
    nested = section.get("limits")
    if not isinstance(nested, dict):
        return section
    return section | {"limits": {key: value for key, value in nested.items() if key != name}}


def _target(field: Field, limits: bool) -> str:
    """The part of the request that an option goes to."""
    return "search" if field.part == "plan" and limits else field.part


def read(name: str, text: str, limits: bool) -> Any:
    """The value an option's text stands for.

    Raises RequestError where it stands for none: an unset variable of a shell, say.
    """
    from planner.documents.loading import scalar
    from planner.documents.problems import join, refuse, shown

    field = FIELDS[name]
    target = _target(field, limits)
    pointer = join("", *filter(None, (target, name)))

    def one(word: str) -> Any:
        value = scalar(word.strip(), pointer)
        if value is None:
            detail = f"{field.flag} needs a value" + (f", got {shown(text)!r}" if text else "")
            raise refuse(pointer, "empty", detail)
        return value

    if not target:
        return text if text.strip() else one(text)
    if name in LISTS:
        return [one(item) for item in text.split(",")]
    if target == "search" and field.part == "plan":
        if ".." in text:
            low, _, high = text.partition("..")
            return {end: one(word) for end, word in (("min", low), ("max", high)) if word.strip()}
        if "," in text:
            return [one(item) for item in text.split(",")]
    return one(text)


STANDARD_INPUT = "FILE"  # stands for a request that came from there, and is gone


def command_line(given: Mapping[str, Any], request: str | None, leave_out: Iterable[str]) -> str:
    """The options that repeat what was asked, for the next command."""
    import shlex

    source = STANDARD_INPUT if request == "-" else request
    words = [] if source is None else ["--request", source]
    for name, value in given.items():
        if name in leave_out:
            continue
        flag = FIELDS[name].flag
        if isinstance(value, bool):
            words.append(flag if value else "--no-" + flag[2:])
        else:
            words += [flag, value]
    return shlex.join(words)
