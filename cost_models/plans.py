"""One plan as a document (ParallelPlan) and many plans as arrays (Plans).

Both have the same fields.  In Plans a field is an int64 array with one element per plan, or a
0-d array where all plans agree; names are stored as their index in the vocabularies below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from cost_models.fields import Spec
from cost_models.runtimes import RUNTIMES
from cost_models.schedules import SCHEDULES

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

Recompute = Literal["none", "selective", "full"]
RecomputeMethod = Literal["block", "uniform"]
RecomputeModule = Literal[
    "core_attn", "layernorm", "mlp", "moe_act", "mla_up_proj", "moe", "shared_experts", "op"
]
Schedule = Literal[
    "naive",
    "gpipe",
    "pipedream",
    "pipedream-2bw",
    "1f1b",
    "interleaved-1f1b",
    "looped-bfs",
    "zb-h1",
    "zb-h2",
    "interleaved-zero-bubble",
    "zb-v",
    "v-half",
    "v-min",
    "dualpipe",
    "dualpipe-v",
    "hanayo",
]
CPKind = Literal["p2p", "all_gather", "a2a"]
RankOrder = Literal["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]
AttentionKernel = Literal["flash", "unfused", "flash2", "flash1"]
CrossEntropy = Literal["unfused", "fused", "in_place"]
MoEDispatcher = Literal["alltoall", "allgather", "deepep", "hybridep"]
# The registry names them; a type checker sees any string.
if TYPE_CHECKING:
    RuntimeName = str
else:
    RuntimeName = Literal[tuple(RUNTIMES)]

# Index in the tuple = value in a Plans array.  recompute_modules is a bit set over its tuple.
VOCABULARIES: dict[str, tuple[str, ...]] = {
    "recompute": ("none", "selective", "full"),
    "recompute_method": ("block", "uniform"),
    "schedule": get_args(Schedule),
    "cp_kind": ("p2p", "all_gather", "a2a"),
    "rank_order": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
    "attention_kernel": get_args(AttentionKernel),
    "cross_entropy": get_args(CrossEntropy),
    "moe_dispatcher": get_args(MoEDispatcher),
    "runtime": tuple(RUNTIMES),
}
RECOMPUTE_MODULES: tuple[RecomputeModule, ...] = (
    "core_attn",
    "layernorm",
    "mlp",
    "moe_act",
    "mla_up_proj",
    "moe",
    "shared_experts",
    "op",
)

Degree = Annotated[int, Field(ge=1, le=1_000_000)]


class ParallelPlan(Spec):
    """How the work is split, stored and ordered: everything a launcher needs to be told."""

    tp: Degree = Field(1, description="tensor parallel")
    sequence_parallel: bool = Field(False, description="norms and dropout split over tp")
    cp: Degree = Field(1, description="context parallel")
    cp_kind: CPKind = "p2p"
    dynamic_cp: bool = Field(
        False,
        description="each packed sample over as few of the dp x cp ranks as its length needs; cp "
        "ranks hold the longest",
    )
    pp: Degree = Field(1, description="pipeline parallel: stages")
    vpp: Degree = Field(1, description="model chunks per pipeline rank")
    dp: Degree = Field(1, description="data parallel: accelerators / (tp cp pp)")
    dp_shard: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        0, description="ranks one ZeRO shard group spans (hybrid sharding); 0: all of dp x cp"
    )
    ep: Degree = Field(1, description="expert parallel, inside tp x cp x dp")
    etp: Degree = Field(1, description="tensor parallel of the experts")
    zero_stage: Annotated[int, Field(ge=0, le=3)] = Field(
        1, description="0 replicated, 1 optimizer, 2 + gradients, 3 + weights sharded"
    )
    reshard_after_forward: bool = Field(
        True, description="ZeRO-3: free gathered weights after the forward pass"
    )
    micro_batch_size: Degree = 1
    recompute: Recompute = "none"
    recompute_modules: tuple[RecomputeModule, ...] = Field((), description="when selective")
    recompute_method: RecomputeMethod = "block"
    recompute_num_layers: Annotated[int, Field(ge=0, le=10_000)] = Field(
        0, description="full: layers per model chunk (block), or per checkpoint (uniform)"
    )
    recompute_layers: tuple[Annotated[int, Field(ge=0, le=10_000)], ...] = Field(
        (),
        max_length=4096,
        description="full by block: layers per virtual stage in forward order, where they differ; "
        "recompute_num_layers is the most of them",
    )
    schedule: Schedule = "1f1b"
    first_stage_layers: Annotated[int, Field(ge=0, le=10_000)] = Field(
        0, description="layers of the first stage; 0: as the middle ones"
    )
    last_stage_layers: Annotated[int, Field(ge=0, le=10_000)] = Field(
        0, description="layers of the last stage; 0: as the middle ones"
    )
    stage_layers: tuple[Annotated[int, Field(ge=0, le=10_000)], ...] = Field(
        (),
        max_length=4096,
        description="explicit layers per stage, or per virtual stage in forward order; empty: "
        "first/middle/last",
    )
    rank_order: RankOrder = "tp-cp-ep-dp-pp"
    offload_optimizer: bool = False
    offload_activations: bool = False
    offload_num_layers: Annotated[int, Field(ge=0, le=10_000)] = Field(
        0, description="layers of each stage whose activations are offloaded; 0: all of them"
    )
    attention_kernel: AttentionKernel = "flash"
    cross_entropy: CrossEntropy = "fused"
    moe_dispatcher: MoEDispatcher = "alltoall"
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    overlap_tp: bool = False
    overlap_p2p: bool = True
    overlap_ep: bool = Field(
        False, description="experts' exchanges under the kernels of another micro-batch"
    )
    runtime: RuntimeName = Field(
        "megatron", description="whose kernels, overlaps and allocator are priced"
    )
    compile: bool = Field(False, description="torch.compile: memory-bound kernels fused")

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, data: Any) -> Any:
        """Plans that were saved by 0.1.0, which called the runtime `stack`."""
        if isinstance(data, dict) and "stack" in data and "runtime" not in data:
            data = {("runtime" if name == "stack" else name): data[name] for name in data}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.recompute == "selective" and not self.recompute_modules:
            raise ValueError("selective recompute needs recompute_modules")
        if self.recompute != "selective" and self.recompute_modules:
            raise ValueError("recompute_modules belong to selective recompute")
        if self.recompute == "full" and self.recompute_num_layers < 1:
            raise ValueError("full recompute needs recompute_num_layers >= 1")
        if self.recompute != "full" and self.recompute_num_layers:
            raise ValueError("recompute_num_layers belong to full recompute")
        if self.offload_num_layers and not self.offload_activations:
            raise ValueError("offload_num_layers belong to offload_activations")
        if self.recompute_layers:
            self._some_layers()
        if self.stage_layers:
            two_way = SCHEDULES[self.schedule].placement == "two-way"
            counts = {self.pp, self.pp if two_way else self.pp * self.vpp}
            if len(self.stage_layers) not in counts:
                wanted = " or ".join(str(count) for count in sorted(counts))
                raise ValueError(f"stage_layers names {len(self.stage_layers)} of {wanted} stages")
            if self.first_stage_layers or self.last_stage_layers:
                raise ValueError("give stage_layers, or first/last_stage_layers, not both")
        chunks = SCHEDULES[self.schedule].chunk_counts
        if self.vpp not in chunks if chunks else self.vpp < 2:
            allowed = " or ".join(str(n) for n in chunks) or "2 or more"
            raise ValueError(
                f"vpp {self.vpp} does not go with schedule {self.schedule}, which has {allowed}"
            )
        return self

    def _some_layers(self) -> None:
        """Raise where recompute_layers does not go with the other fields."""
        if self.recompute != "full" or self.recompute_method != "block":
            raise ValueError("recompute_layers belong to full recompute by block")
        if SCHEDULES[self.schedule].placement == "two-way":
            raise ValueError(f"{self.schedule} holds every stage twice: no recompute_layers")
        count, most = self.pp * self.vpp, max(self.recompute_layers)
        if len(self.recompute_layers) != count:
            raise ValueError(f"recompute_layers names {len(self.recompute_layers)} of {count}")
        if most != self.recompute_num_layers:
            raise ValueError(f"recompute_num_layers has to be {most}, the most of recompute_layers")

    @property
    def accelerators(self) -> int:
        return self.tp * self.cp * self.pp * self.dp

    @property
    def recompute_module_bits(self) -> int:
        return sum(1 << RECOMPUTE_MODULES.index(m) for m in self.recompute_modules)


@dataclass(frozen=True)
class Plans:
    """The fields of ParallelPlan as arrays that broadcast against each other."""

    tp: IntArray
    sequence_parallel: IntArray
    cp: IntArray
    cp_kind: IntArray
    dynamic_cp: IntArray
    pp: IntArray
    vpp: IntArray
    dp: IntArray
    dp_shard: IntArray
    ep: IntArray
    etp: IntArray
    zero_stage: IntArray
    reshard_after_forward: IntArray
    micro_batch_size: IntArray
    recompute: IntArray
    recompute_modules: IntArray
    recompute_method: IntArray
    recompute_num_layers: IntArray
    recompute_layers: IntArray
    schedule: IntArray
    first_stage_layers: IntArray
    last_stage_layers: IntArray
    stage_layers: IntArray
    rank_order: IntArray
    offload_optimizer: IntArray
    offload_activations: IntArray
    offload_num_layers: IntArray
    attention_kernel: IntArray
    cross_entropy: IntArray
    moe_dispatcher: IntArray
    overlap_grad_reduce: IntArray
    overlap_param_gather: IntArray
    overlap_tp: IntArray
    overlap_p2p: IntArray
    overlap_ep: IntArray
    runtime: IntArray
    compile: IntArray
    # Row k of this table is what stage_layers or recompute_layers == k + 1 means; 0 means none.
    stage_layers_table: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def build(cls, **columns: Any) -> Plans:
        """Plans from named columns (and `stage_layers_table`); the others take their default."""
        table: tuple[tuple[int, ...], ...] = columns.pop("stage_layers_table", ())
        values: dict[str, IntArray] = {}
        for name in FIELDS:
            value = columns.pop(name) if name in columns else _DEFAULTS[name]
            values[name] = np.asarray(value, dtype=np.int64)
        if columns:
            raise TypeError(f"unknown plan fields {sorted(columns)}")
        return cls(**values, stage_layers_table=table)

    @classmethod
    def from_rows(
        cls, rows: Sequence[ParallelPlan], table: tuple[tuple[int, ...], ...] = ()
    ) -> Plans:
        """Plans of shape (len(rows),); table: the first rows of theirs."""
        named = {layers for row in rows for layers in _tuples(row)}
        table = (*table, *sorted(named - set(table)))
        columns = {
            name: np.array([encode(row, name, table) for row in rows], dtype=np.int64)
            for name in FIELDS
        }
        return cls.build(stage_layers_table=table, **columns)

    @classmethod
    def of(cls, row: ParallelPlan) -> Plans:
        """One plan as numbers, shape (): what NumPy computes faster than arrays of one."""
        table = _tuples(row)
        columns = {name: encode(row, name, table) for name in FIELDS}
        return cls.build(stage_layers_table=table, **columns)

    def __len__(self) -> int:
        """Number of plans (0-d columns broadcast)."""
        return self._size

    @cached_property
    def _size(self) -> int:
        return next((len(column) for _, column in self.columns() if column.ndim), 1)

    @cached_property
    def _is_one(self) -> bool:
        return all(column.ndim == 0 for _, column in self.columns())

    def columns(self) -> Iterator[tuple[str, IntArray]]:
        for name in FIELDS:
            yield name, getattr(self, name)

    def take(self, index: Any) -> Plans:
        """The plans at an index, mask or slice; 0-d columns stay 0-d."""
        if self._is_one:
            return self
        if isinstance(index, np.ndarray) and index.dtype == np.bool_:
            index = np.flatnonzero(index)  # once for all columns
        picked = {n: (c if c.ndim == 0 else c[index]) for n, c in self.columns()}
        return Plans(**picked, stage_layers_table=self.stage_layers_table)

    def with_columns(self, **columns: Any) -> Plans:
        changed: dict[str, Any] = {n: np.asarray(c, dtype=np.int64) for n, c in columns.items()}
        return replace(self, **changed)

    def of_stage_layers(self, value: Callable[[tuple[int, ...]], int], none: int = 0) -> IntArray:
        """What `value` says of each plan's explicit layers; `none` where it has none."""
        said = np.array([none, *map(value, self.stage_layers_table)], dtype=np.int64)
        return np.asarray(said[self.stage_layers])

    def row(self, i: int) -> ParallelPlan:
        """Plan i as a document."""
        values: dict[str, Any] = {}
        for name, column in self.columns():
            code = int(column if column.ndim == 0 else column[i])
            values[name] = self._decode(name, code)
        return ParallelPlan(**values)

    def values(self) -> dict[str, list[Any]]:
        """Every field as a list of what a document has, one element per plan."""
        found = {}
        for name, column in self.columns():
            codes, where = np.unique(np.broadcast_to(column, (len(self),)), return_inverse=True)
            meanings = [self._decode(name, int(code)) for code in codes]
            found[name] = [meanings[i] for i in where.tolist()]
        return found

    def _decode(self, name: str, code: int) -> Any:
        if name == "recompute_modules":
            return tuple(m for k, m in enumerate(RECOMPUTE_MODULES) if code >> k & 1)
        if name in _BY_STAGE:
            return self.stage_layers_table[code - 1] if code else ()
        if name in VOCABULARIES:
            return VOCABULARIES[name][code]
        if name in _BOOLEANS:
            return bool(code)
        return code


# Fields that are codes of rows of the table.
_BY_STAGE = ("stage_layers", "recompute_layers")


def _tuples(row: ParallelPlan) -> tuple[tuple[int, ...], ...]:
    """What the fields by stage of a plan say, each once."""
    said = (getattr(row, name) for name in _BY_STAGE)
    return tuple(dict.fromkeys(layers for layers in said if layers))


def encode(row: ParallelPlan, name: str, table: tuple[tuple[int, ...], ...] = ()) -> int:
    """The integer a Plans column holds for one field of one plan."""
    value = getattr(row, name)
    if name == "recompute_modules":
        return row.recompute_module_bits
    if name in _BY_STAGE:
        return table.index(value) + 1 if value else 0
    if name in VOCABULARIES:
        return VOCABULARIES[name].index(value)
    return int(value)


@cache
def code(field: str, name: str) -> int:
    """The integer that stands for a name of a vocabulary."""
    return VOCABULARIES[field].index(name)


def is_one_of(codes: IntArray, field: str, *names: str) -> FloatArray:
    """1.0 where a column of codes holds one of some names of its vocabulary, else 0.0."""
    flags: FloatArray = _flags(field, names)[codes]
    return flags


@cache
def _flags(field: str, names: tuple[str, ...]) -> FloatArray:
    return np.array([float(name in names) for name in VOCABULARIES[field]])


FIELDS: tuple[str, ...] = tuple(f.name for f in fields(Plans) if f.name != "stage_layers_table")
_DEFAULTS: dict[str, int] = {name: encode(ParallelPlan(), name) for name in FIELDS}
_BOOLEANS = frozenset(
    name for name, info in ParallelPlan.model_fields.items() if info.annotation is bool
)


def concatenate(first: Plans, second: Plans) -> Plans:
    """Both batches as one; columns without a dimension are shared where they agree."""
    columns = {}
    for name, column in first.columns():
        other: IntArray = getattr(second, name)
        if column.ndim == 0 and other.ndim == 0 and column == other:
            columns[name] = column
        else:
            a = np.broadcast_to(column, (len(first),))
            columns[name] = np.concatenate([a, np.broadcast_to(other, (len(second),))])
    return Plans.build(stage_layers_table=first.stage_layers_table, **columns)
