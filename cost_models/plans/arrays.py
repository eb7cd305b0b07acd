"""Many plans as arrays, one for each field of a plan's document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property, lru_cache
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.effects import Rule, conditions
from cost_models.plans.plan import RECOMPUTE_MODULES, VOCABULARIES, ParallelPlan
from cost_models.runtimes import traits

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


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
    # The size of each plan's step, where they differ; None: that of the training.
    seq_length: IntArray | None = None
    global_batch_size: IntArray | None = None

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
        return cls(**columns, stage_layers_table=table)

    @classmethod
    def of(cls, row: ParallelPlan) -> Plans:
        """One plan as numbers, shape (): what NumPy computes faster than arrays of one."""
        table = _tuples(row)
        columns: dict[str, Any] = {name: np.int64(encode(row, name, table)) for name in FIELDS}
        return cls(**columns, stage_layers_table=table)

    @classmethod
    @lru_cache(maxsize=64)  # the rules and the price of some plans both ask
    def few(cls, rows: tuple[ParallelPlan, ...]) -> Plans:
        """Plans of shape (len(rows),), a single one as numbers."""
        return cls.from_rows(rows) if len(rows) > 1 else cls.of(rows[0])

    def as_numbers(self) -> Plans:
        """A single plan with columns of shape ()."""
        if self.is_one:
            return self
        return self._mapped(lambda column: column.reshape(())[()])

    def __len__(self) -> int:
        """Number of plans (0-d columns broadcast)."""
        return self._size

    @cached_property
    def _size(self) -> int:
        return next((len(column) for _, column in self.columns() if column.ndim), 1)

    @cached_property
    def is_one(self) -> bool:
        """Whether every column is a number."""
        return all(column.ndim == 0 for _, column in self.columns())

    def columns(self) -> Iterator[tuple[str, IntArray]]:
        return zip(FIELDS, _COLUMNS(vars(self)), strict=True)

    def take(self, index: Any) -> Plans:
        """The plans at an index, mask or slice; 0-d columns stay 0-d."""
        if self.is_one:
            return self
        if not isinstance(index, np.ndarray):
            return self._mapped(lambda column: column[index] if column.ndim else column)
        if index.dtype == np.bool_:
            index = np.flatnonzero(index)  # once for all columns
        # NumPy takes a few rows faster than it indexes them.
        return self._mapped(lambda column: column.take(index) if column.ndim else column)

    def _mapped(self, change: Callable[[IntArray], IntArray]) -> Plans:
        """The plans with every column changed."""
        sizes = self.seq_length, self.global_batch_size
        seq_length, batch = (None if column is None else change(column) for column in sizes)
        changed = dict(zip(FIELDS, map(change, _COLUMNS(vars(self))), strict=True))
        return _made(changed, self.stage_layers_table, seq_length, batch)

    def in_steps(self, seq_lengths: Sequence[int], batches: Sequence[int]) -> Plans:
        """The plans in steps of these sizes, one for each plan."""
        shape = () if self.is_one else (len(self),)
        sizes = (
            np.array(each, dtype=np.int64).reshape(shape)[()] for each in (seq_lengths, batches)
        )
        seq_length, batch = sizes
        return replace(self, seq_length=seq_length, global_batch_size=batch)

    def with_columns(self, **columns: Any) -> Plans:
        changed: dict[str, Any] = {n: np.asarray(c, dtype=np.int64) for n, c in columns.items()}
        return _made(dict(self.columns()) | changed, self.stage_layers_table)

    @cached_property
    def autocast(self) -> IntArray:
        """1 where weights that train are stored in fp32 and cast by autocast, not by FSDP."""
        casts = np.asarray(traits(self.runtime).autocasts)
        if not np.any(casts):
            return np.asarray(0, dtype=np.int64)
        return np.asarray(casts * (self.zero_stage < 3), dtype=np.int64)

    def micro_batches(self, global_batch_size: int) -> FloatArray:
        """Micro-batches of a step on each pipeline; whole for legal plans."""
        samples = global_batch_size if self.global_batch_size is None else self.global_batch_size
        return samples / (self.dp * self.micro_batch_size)

    def reads(self, field: str) -> NDArray[np.bool_]:
        """Which plans a field has an effect on, by its declared conditions."""
        satisfied = [
            np.logical_and.reduce([self._satisfies(*rule) for rule in each.items()])
            for each in conditions(ParallelPlan, field)
        ]
        return np.asarray(np.logical_or.reduce(satisfied) if satisfied else True)

    def _satisfies(self, field: str, rule: Rule) -> NDArray[np.bool_]:
        """Where a field has the value that a rule asks for."""
        column: IntArray = getattr(self, field)
        if "const" not in rule:
            return np.asarray(column > rule["exclusiveMinimum"])
        value = rule["const"]
        return np.asarray(column == (code(field, value) if field in VOCABULARIES else value))

    def of_stage_layers(self, value: Callable[[tuple[int, ...]], int], none: int = 0) -> IntArray:
        """What `value` says of each plan's explicit layers; `none` where it has none."""
        values = np.array([none, *map(value, self.stage_layers_table)], dtype=np.int64)
        return np.asarray(values[self.stage_layers])

    def row(self, i: int) -> ParallelPlan:
        """Plan i as a document."""
        values: dict[str, Any] = {}
        for name, column in self.columns():
            code = int(column if column.ndim == 0 else column[i])
            values[name] = self._decode(name, code)
        return ParallelPlan(**values)

    def values(self) -> dict[str, list[Any]]:
        """Every field as a list of what a document has, one element per plan."""
        columns = {}
        for name, column in self.columns():
            codes, inverse = np.unique(np.broadcast_to(column, (len(self),)), return_inverse=True)
            meanings = [self._decode(name, int(code)) for code in codes]
            columns[name] = [meanings[i] for i in inverse.tolist()]
        return columns

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


def _made(
    columns: dict[str, IntArray],
    table: tuple[tuple[int, ...], ...],
    seq_length: IntArray | None = None,
    global_batch_size: IntArray | None = None,
) -> Plans:
    """Plans of all columns: thousands are made in a search, and their __init__ takes long."""
    plans = object.__new__(Plans)
    vars(plans).update(
        columns, stage_layers_table=table, seq_length=seq_length,
        global_batch_size=global_batch_size,
    )  # fmt: skip
    return plans


# Fields that are codes of rows of the table.
_BY_STAGE = ("stage_layers", "recompute_layers")


def _tuples(row: ParallelPlan) -> tuple[tuple[int, ...], ...]:
    """What the fields by stage of a plan say, each once."""
    by_stage = (getattr(row, name) for name in _BY_STAGE)
    return tuple(dict.fromkeys(layers for layers in by_stage if layers))


def encode(row: ParallelPlan, name: str, table: tuple[tuple[int, ...], ...] = ()) -> int:
    """The integer a Plans column holds for one field of one plan."""
    value = getattr(row, name)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return code(name, value)
    if name == "recompute_modules":
        return row.recompute_module_bits
    return table.index(value) + 1 if value else 0


@cache
def code(field: str, name: str) -> int:
    """The integer that stands for a name of a vocabulary."""
    return VOCABULARIES[field].index(name)


def encoded(field: str, value: object) -> int:
    """The integer that a column of Plans holds for a value of one number."""
    return code(field, str(value)) if field in VOCABULARIES else int(value)  # type: ignore[call-overload]


def is_one_of(codes: IntArray, field: str, *names: str) -> FloatArray:
    """1.0 where a column of codes holds one of some names of its vocabulary, else 0.0."""
    return _flags(field, names)[codes]


@cache
def _flags(field: str, names: tuple[str, ...]) -> FloatArray:
    return np.array([float(name in names) for name in VOCABULARIES[field]])


_BESIDE = ("stage_layers_table", "seq_length", "global_batch_size")
FIELDS: tuple[str, ...] = tuple(f.name for f in fields(Plans) if f.name not in _BESIDE)
_COLUMNS = itemgetter(*FIELDS)
_DEFAULTS: dict[str, int] = {name: encode(ParallelPlan(), name) for name in FIELDS}
_BOOLEANS = frozenset(
    name for name, info in ParallelPlan.model_fields.items() if info.annotation is bool
)


def concatenate(*parts: Plans) -> Plans:
    """All batches as one; columns without a dimension are shared where they agree."""
    columns, sizes = {}, [len(plans) for plans in parts]
    for name in FIELDS:
        parts_columns: list[IntArray] = [getattr(plans, name) for plans in parts]
        if all(column.ndim == 0 and column == parts_columns[0] for column in parts_columns):
            columns[name] = parts_columns[0]
        else:
            each = [
                column if column.ndim else np.full(size, column)
                for column, size in zip(parts_columns, sizes, strict=True)
            ]
            columns[name] = np.concatenate(each)
    return _made(columns, parts[0].stage_layers_table)


def joined(parts: Sequence[Plans]) -> Plans:
    """All plans as one batch, whatever stage layers their own tables have."""
    if len(parts) == 1:
        return parts[0]
    table = tuple(dict.fromkeys(row for plans in parts for row in plans.stage_layers_table))
    indices = {row: number for number, row in enumerate(table, 1)}
    return concatenate(*(_retabled(plans, table, indices) for plans in parts))


def _retabled(
    plans: Plans, table: tuple[tuple[int, ...], ...], indices: dict[tuple[int, ...], int]
) -> Plans:
    """The plans with another table of stage layers."""
    codes = np.array([0, *(indices[row] for row in plans.stage_layers_table)])
    columns = dict(plans.columns())
    for name in ("stage_layers", "recompute_layers"):
        columns[name] = codes[columns[name]]
    return _made(columns, table)
