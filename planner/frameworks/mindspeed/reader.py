"""Reads MindSpeed's launch scripts: those of Megatron-LM with MindSpeed's own options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.plans import ParallelPlan
from planner.constraints.layout_fields import layout_fields
from planner.frameworks import training_calls
from planner.frameworks.arguments import Arguments
from planner.frameworks.megatron import layout, reader
from planner.frameworks.megatron_option_readers import VOCABULARY, has_null_tokenizer
from planner.frameworks.mindspeed import llm
from planner.frameworks.mindspeed.flags import CP_ALGORITHMS
from planner.frameworks.read_results import Reading, Unreadable

TITLE = "MindSpeed"
CP_KINDS = {name: kind for kind, name in CP_ALGORITHMS.items()}


def recognises(files: Mapping[str, str]) -> bool:
    """Whether some script calls a Megatron-LM training that names MindSpeed or its options."""
    try:
        launch = training_calls.training_call(files, reader.trains, TITLE).launch
    except Unreadable:
        return False
    words = {word.text.partition("=")[0] for word in launch.arguments}
    if launch.launcher == "deepspeed" or "--deepspeed" in words:
        return False
    named = any(reader.MINDSPEED.search(text) for text in files.values())
    return bool("--num-layers" in words and (named or words & reader.MINDSPEED_OPTIONS))


def _model(args: Arguments, fields: dict[str, Any]) -> dict[str, Any]:
    """The vocab_size field: core 0.12's NullTokenizer has one token more than is given."""
    if not (has_null_tokenizer(args) and args.has(VOCABULARY)):
        return {}
    args.assumed[:] = [text for text in args.assumed if not text.startswith("NullTokenizer")]
    return {"vocab_size": fields["vocab_size"] + 1}


def _plan(args: Arguments, plan: ParallelPlan) -> dict[str, Any]:
    args.has(*llm.FREE)
    own: dict[str, Any] = {
        "attention_kernel": "flash",
        "cp_kind": _cp_kind(args, plan.cp),
        "overlap_tp": args.has("--use-ascend-mc2", "--use-ascend-coc"),
        "overlap_ep": args.has("--moe-fb-overlap"),
        "offload_optimizer": args.has("--swap-optimizer") or plan.offload_optimizer,
    }
    if args.has("--schedules-method"):
        own |= {"schedule": "dualpipe-v", "vpp": 2}
        if text := args.text(layout.OPTION):
            counts = tuple(len(one) for one in text.split("|"))
            own |= {"first_stage_layers": 0, "last_stage_layers": 0, "stage_layers": ()}
            own |= layout_fields("dualpipe-v", plan.pp, 2, counts)
    return own


def _cp_kind(args: Arguments, cp: int) -> str:
    algorithm = args.text("--context-parallel-algo", "megatron_cp_algo")
    if cp > 1 and algorithm not in CP_KINDS:
        args.assume(f"context parallelism by {algorithm} is costed as p2p")
    return CP_KINDS.get(algorithm, "p2p")


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """Reads a launch script.

    Raises Unreadable if it is no launch of MindSpeed or leaves out what a model needs.
    """
    dialect = reader.Dialect(
        "mindspeed",
        TITLE,
        llm.PACKAGE,
        _model,
        _plan,
        training=llm.adapter_fields,
        translate=llm.translate,
        changes=llm.CHANGES,
        options=llm.flags,
    )
    return reader.read_as(dialect, files, accelerators)
