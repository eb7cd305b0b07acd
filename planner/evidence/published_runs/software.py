"""What a run's software does by default, in the terms of a plan: kernels, dtypes, overlap.

The first pattern found in the row's stack decides, or in its source's title where the row names no
stack.  A stack that nobody listed is eager PyTorch with nothing overlapped, and said to be guessed,
as is one that is taken as another's.  A row's own overlap columns win.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from functools import reduce
from operator import or_
from typing import Any

from cost_models.package_files import table
from cost_models.runtimes import RUNTIMES
from planner.evidence.published_runs.runs import Run


@dataclass(frozen=True)
class Software:
    """One family of releases: plan and training fields, and where they are documented."""

    pattern: str
    label: str
    plan: dict[str, Any]
    training: dict[str, Any] = field(default_factory=dict)
    # fp16 runs of that time accumulate and reduce in fp16, bf16 runs in fp32 (arguments.py).
    half_gradients: bool = False
    # Releases of this year and later.
    since: int = 0
    # Whether its kernels and overlap are another stack's, for its own are not known.
    guessed: bool = False

    @property
    def lineage(self) -> str:
        """Whose runtime its own is a kind of."""
        return RUNTIMES[self.plan["runtime"]].lineage


_TABLE = table(__package__ or "", "software.json")


def _software(row: dict[str, Any]) -> Software:
    """A row of software.json; is: what it shares with others."""
    plan = reduce(or_, (_TABLE["shared"][part] for part in row["is"]), row["plan"])
    values = {part.name: row[part.name] for part in fields(Software) if part.name in row}
    return Software(**values | {"plan": plan})


# The last row is what nobody listed.
*_SOFTWARE, _UNKNOWN = map(_software, _TABLE["software"])
SOFTWARE: tuple[Software, ...] = tuple(_SOFTWARE)
# Megatron of these years was not yet Megatron-Core, whatever the row calls it.
_EARLY = {
    year: next(s for s in SOFTWARE if s.plan["runtime"] == f"megatron-{year}")
    for year in (2021, 2022)
}
# Before 2023 nothing here had flash attention; the released kernels of 2023 are version 2.
FLASH_SINCE, FLASH3_SINCE = 2023, 2024
_FUSED = (
    "flash", "fused", "cudnn", "fa1", "fa2", "fa3", "fa4", "sdpa", "triton", "aiter", "xformers",
    "efficient", "splash", "flex",
)  # fmt: skip


def software_of(run: Run) -> tuple[Software, tuple[str, ...]]:
    """The software of a row, and what was assumed of it."""
    name = run["stack"] if run["stack"].lower() not in ("", "other") else run["source"]
    name = name.lower().replace("_", "-").replace(" ", "-")
    if re.search(r"\bnemo \d\d\.\d\d\b", run.notes.lower()):
        name = "nemo"  # a release that the notes name wins
    matching = (
        known
        for known in SOFTWARE
        if name and run.year >= known.since and re.search(known.pattern, name)
    )
    software = next(matching, _UNKNOWN)
    if software.plan["runtime"] == "megatron" and run.year <= max(_EARLY):
        software = _EARLY[max(run.year, min(_EARLY))]
    elif software is _UNKNOWN:
        stack = run["stack"][:60] or "not stated"
        return software, (f"software: {stack}, taken as eager PyTorch with nothing overlapped",)
    return software, (f"software: {software.label}",)


def attention_kernel(run: Run, software: Software) -> str:
    """The attention of a row: as its column says, else by its flag and year."""
    stated = run["attention_kernel"].lower()
    year, flag = run.year, run.flag("flash_attention")

    def says(*names: str) -> bool:
        return any(name in stated for name in names)

    if says("unfused", "eager", "naive", "math", "none"):
        return "unfused"
    if not says(*_FUSED) and not (year >= FLASH_SINCE if flag is None else flag):
        return "unfused"
    if says("flash3", "fa3", "flash-3", "flash-attention-3", "cudnn", "fa4"):
        return "flash"
    if "flash1" in stated or ("fsdp1" in run["stack"].lower() and year <= 2023):
        # MPT's ALiBi needed the Triton kernel of flash-attn 1 until flash-attn 2.4.2 (llm-foundry
        # attention.py, attn_impl "triton").
        return "flash1"
    second = says("flash2", "fa2", "flash-2", "flash-attention-2", "sdpa", "xformers")
    if second or year < FLASH3_SINCE:
        return "flash2"
    return str(software.plan.get("attention_kernel", "flash"))


def gradient_dtypes(
    run: Run, software: Software, precision: str, adapts: bool = False
) -> dict[str, str]:
    """The dtypes that gradients accumulate and reduce in, and the optimizer's where they differ."""
    if software.half_gradients and precision == "fp16":
        return {"gradient_dtype": "fp16", "gradient_reduce_dtype": "fp16"}
    # litgpt's word for a model that is bf16 throughout, and that of others for what AdamW gets.
    text = run.notes.lower()
    pure = re.search(r"bf16-true|\bweights bf16\b|\bbf16 weights\b", text)
    if precision == "bf16" and pure and not (adapts and "adapters fp32" in text):
        return dict(_TABLE["shared"]["pure bf16"])
    if "bf16 pure" in run.notes.lower() or "pure mode" in run.notes.lower():
        return {"gradient_dtype": "bf16", "gradient_reduce_dtype": "bf16"}
    return {"gradient_dtype": "fp32", "gradient_reduce_dtype": "fp32", **software.training}
