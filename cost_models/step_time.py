"""Seconds of one optimizer step, part by part, from key-level seconds: arithmetic on arrays."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from cost_models.arrays import all_of, any_of, maximum, minimum, per_row, sum_of, where
from cost_models.blocks.records import FlashAttention
from cost_models.data_parallel import DataParallelSeconds, data_parallel_seconds
from cost_models.dynamic_context import by_sample, is_dynamic, waiting_share
from cost_models.keyed_plans import CostContext, FloatArray, KeyedPlans, by_schedule
from cost_models.layer_costs import BlockSeconds, MicroBatchSeconds, micro_batch_seconds
from cost_models.layers import layers_of
from cost_models.objectives import forward_share, with_reference
from cost_models.packing import expected_maximum, lengths_of, variation
from cost_models.placement import Placement
from cost_models.plans import VOCABULARIES, Plans, code
from cost_models.schedules import SCHEDULES
from cost_models.schedules.base import Costs, PipelineSchedule
from cost_models.schedules.simulated_bubble import (
    MOST_ACTIONS,
    ROUNDS,
    simulated_extra_s,
    uneven_extra_s,
)
from cost_models.sources import Array, formula
from cost_models.stages import VirtualStages
from cost_models.synchronisation import Sharded, activation_offload_s, step_seconds


class BlockTimes:
    """Seconds of each kind of layer and of both ends per micro-batch, laid out per plan.

    whole_s: forward and backward with collectives; again_s: what recomputing a layer adds;
    exposed_s: exposed ZeRO traffic (part of whole_s); kernels, communication: by layer key, not
    by plan.
    """

    NAMES = ("forward_s", "backward_s", "recompute_s", "tp_s", "cp_s", "ep_s")
    WITHIN = ("weight_gradient_s", "forward_comm_s")
    BESIDE = ("ep_hidden_s",)

    def __init__(self, s: CostContext, g: KeyedPlans, dp: DataParallelSeconds) -> None:
        micro = s.memo.of("seconds", g.layer_plans, lambda: _by_key(s, g))
        at_layer = g.layers.spread
        self.kernels = tuple(layer.kernels for layer in micro.layers)
        self.communication = tuple(layer.communication for layer in micro.layers)

        def columns(block: BlockSeconds, names: tuple[str, ...]) -> dict[str, Array]:
            return {name: at_layer(getattr(block, name)) for name in names}

        self._losses = 1 + s.model.mtp_num_layers
        reference = forward_share(s.model, s.training)
        ends = (*self.NAMES[:5], *self.WITHIN)
        self.layers = [
            with_reference(columns(layer, (*self.NAMES, *self.WITHIN, *self.BESIDE)), reference)
            for layer in micro.layers
        ]
        self.embedding, self.head = (
            with_reference(columns(end, ends), reference) for end in (micro.embedding, micro.head)
        )
        sharded = Sharded(s, g, dp)
        self.exposed_s = [sharded.layer_s(k, times, 0.0) for k, times in enumerate(self.layers)]
        self.exposed_ends_s = sharded.end_s(self.embedding), sharded.end_s(self.head)
        # A recomputed layer runs one more forward pass, which hides more communication.
        recompute_s = [at_layer(layer.full_recompute_s) for layer in micro.layers]
        self.again_s = [
            more + sharded.layer_s(k, times, more) - exposed
            for k, (times, more, exposed) in enumerate(
                zip(self.layers, recompute_s, self.exposed_s, strict=True)
            )
        ]
        self.whole_s = [
            sum_of(times[n] for n in self.NAMES) + exposed
            for times, exposed in zip(self.layers, self.exposed_s, strict=True)
        ]
        self.whole_ends_s = (
            sum_of(self.embedding[n] for n in self.NAMES[:5]) + self.exposed_ends_s[0],
            sum_of(self.head[n] for n in self.NAMES[:5]) + self.exposed_ends_s[1],
        )

    def virtual_stages_s(
        self, virtual: VirtualStages, rows: NDArray[np.int64]
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Forward, input and weight gradient of a micro-batch on each virtual stage, in seconds.

        rows: of which plans; shape (virtual stages, rows).
        """

        def total(counts: Iterable[FloatArray], seconds: Iterable[Array]) -> FloatArray:
            every = [np.asarray(each, dtype=np.float64) for each in seconds]
            at_rows = (each[rows] if each.ndim else np.full(len(rows), each) for each in every)
            pairs = zip(counts, at_rows, strict=True)
            return np.asarray(sum_of(count[:, None] * each for count, each in pairs))

        blocks, ends = (*self.layers, self.embedding, self.head), self.whole_ends_s
        counts = np.vstack([virtual.layers, virtual.first, virtual.last])
        forward = total(counts, [each["forward_s"] + each["forward_comm_s"] for each in blocks])
        weight = total(counts, [each["weight_gradient_s"] for each in blocks])
        whole = total(counts, [*self.whole_s, ends[0], self._losses * ends[1]])
        whole = whole + total(virtual.recomputed, self.again_s)
        return forward, np.maximum(whole - forward - weight, 0.0), weight


def _by_key(s: CostContext, g: KeyedPlans) -> MicroBatchSeconds:
    packed = micro_batch_seconds(s.model, s.machine, g.micro, g.layer_plans)
    return by_sample(s, g.layer_plans, packed)


def stage_s(s: CostContext, g: KeyedPlans, times: BlockTimes, slot: int) -> Array:
    """Seconds of one micro-batch through a stage, forward and backward with its collectives."""
    at_stage, table = g.stages.spread, g.table
    seconds: Array = at_stage(table.first[slot]) * times.whole_ends_s[0]
    seconds = seconds + at_stage(table.last[slot]) * times.whole_ends_s[1]
    for k, (whole_s, again_s) in enumerate(zip(times.whole_s, times.again_s, strict=True)):
        seconds = seconds + at_stage(table.layers[k][slot]) * whole_s
        seconds = seconds + at_stage(table.recomputed[k][slot]) * again_s
    return seconds


def least_step_s(s: CostContext, g: KeyedPlans) -> Array:
    """A lower bound on the seconds of a step, over all layouts of layers on stages.

    The mean stage's kernels and communication of all micro-batches; without full recompute, without
    bubbles, and without the work that is done once per step.
    """
    times = BlockTimes(s, g, data_parallel(s, g))
    every: Array = times.whole_ends_s[0] + (1 + s.model.mtp_num_layers) * times.whole_ends_s[1]
    for count, whole_s in zip(layers_of(s.model).trained_counts, times.whole_s, strict=True):
        every = every + count * whole_s
    return g.micro_batches * every / g.plans.pp


def data_parallel(s: CostContext, g: KeyedPlans) -> DataParallelSeconds:
    """The data-parallel and pipeline seconds of some plans, by key."""
    zero = frozenset(np.unique(g.plans.zero_stage).tolist())
    return s.memo.of(
        f"data parallel {sorted(zero)}",
        g.state_plans,
        lambda: data_parallel_seconds(
            s.model, s.training, s.fabric, g.state_plans, g.held, g.trained, zero
        ),
    )


def step_time(
    s: CostContext, g: KeyedPlans, dp: DataParallelSeconds, times: BlockTimes
) -> dict[str, FloatArray]:
    """TIME_PARTS of one optimizer step; they add up to it."""
    plans, m = g.plans, g.micro_batches
    busiest = _BusiestStage(s, g, times)
    share = busiest.share
    forward, backward, recompute = share("forward_s"), share("backward_s"), busiest.recompute_s()
    bubble = _extra_s(g, busiest.costs(forward, _all_stages_s(s, g, times)))
    if g.table.virtual:
        bubble = _uneven_extra_s(g, times, per_row(bubble, len(plans)))
    step = step_seconds(s, g, dp, forward, backward + recompute)
    parts = {
        "forward": m * forward,
        "backward": m * backward,
        "recompute": m * recompute,
        "tp_comm": m * share("tp_s") + step.tensor_parallel,
        "cp_comm": m * share("cp_s"),
        "ep_comm": m * share("ep_s") + unoverlapped_micro_batches(plans, m) * share("ep_hidden_s"),
        "pp_comm": _pipeline_s(s, g, dp, forward, backward),
        "bubble": bubble,
        "dp_comm": m * busiest.exposed_s() + step.data_parallel,
        "optimizer": step.optimizer,
        "offload": step.offload + activation_offload_s(s, g, forward, backward + recompute),
    }
    n = len(plans)
    return {name: per_row(value, n) for name, value in parts.items()}


def _all_stages_s(s: CostContext, g: KeyedPlans, times: BlockTimes) -> Array:
    """Seconds of one micro-batch through all stages."""
    at_stage, table = g.stages.spread, g.table
    per_embedding, per_head = times.whole_ends_s
    total: Array = per_embedding + (1 + s.model.mtp_num_layers) * per_head
    for k, (whole_s, again_s) in enumerate(zip(times.whole_s, times.again_s, strict=True)):
        total = total + at_stage(table.totals[k]) * whole_s
        total = total + at_stage(table.recomputed_totals[k]) * again_s
    return total


class _BusiestStage:
    """The stage of each plan that takes longest for a micro-batch, and its layers.

    seconds: of one micro-batch through it.
    """

    def __init__(self, s: CostContext, g: KeyedPlans, times: BlockTimes) -> None:
        self._g, self._times = g, times
        self.seconds = stage_s(s, g, times, 0)
        self._slot: NDArray[np.int64] = np.zeros((), dtype=np.int64)
        for slot in range(1, len(g.table.stage)):
            seconds = stage_s(s, g, times, slot)
            slower = seconds > self.seconds
            self.seconds = where(slower, seconds, self.seconds)
            self._slot = where(slower, slot, self._slot)
        self._first, self._last = (self._busiest(g.table.first), self._busiest(g.table.last))
        self._layers = [self._busiest(counts) for counts in g.table.layers]

    def _busiest(self, values: FloatArray) -> Array:
        """Per-layout (slots, layouts) values at each plan's busiest stage."""
        stages = self._g.stages
        if len(values) == 1:
            only: Array = stages.spread(values[0])
            return only
        layout = np.zeros((), dtype=np.int64) if stages.inverse is None else stages.inverse
        return values[self._slot, layout]

    def share(self, name: str) -> Array:
        """Seconds of one part of a micro-batch."""
        times = self._times
        total: Array = sum_of(
            count * block[name] for count, block in zip(self._layers, times.layers, strict=True)
        )
        if name in times.embedding:
            total = total + self._first * times.embedding[name] + self._last * times.head[name]
        return total

    def recompute_s(self) -> Array:
        """Seconds of the work that selective and full recompute repeat."""
        redone = [self._busiest(counts) for counts in self._g.table.recomputed]
        return self.share("recompute_s") + sum_of(
            count * again_s for count, again_s in zip(redone, self._times.again_s, strict=True)
        )

    def exposed_s(self) -> Array:
        """Exposed seconds of ZeRO's communication in every micro-batch."""
        first_s, last_s = self._times.exposed_ends_s
        layers_s = sum_of(
            count * each_s
            for count, each_s in zip(self._layers, self._times.exposed_s, strict=True)
        )
        return layers_s + self._first * first_s + self._last * last_s

    def costs(self, kernels_s: Array, all_stages_s: Array) -> Costs:
        """The inputs of the closed forms of schedules; kernels_s: of the forward pass."""
        forward_s = kernels_s + self.share("forward_comm_s")
        weight_gradient_s = self.share("weight_gradient_s")
        return Costs(
            forward_s=forward_s,
            input_gradient_s=maximum(self.seconds - forward_s - weight_gradient_s, 0.0),
            weight_gradient_s=weight_gradient_s,
            others_s=maximum(all_stages_s - self.seconds, 0.0),
        )


@formula("1", "megatron-core", "derived")
def unoverlapped_micro_batches(plans: Plans, micro_batches: Array) -> Array:
    """Micro-batches whose passes run without those of another micro-batch.

    While a pipeline fills and drains, nothing hides expert communication: of rank r's m v
    forward passes 2 (p-1-r) + (v-1) p + 1 have no backward pass beside them (Megatron-LM
    schedules.py); the mean over ranks, in micro-batches of v chunks.
    """
    passes = plans.pp - 1.0 + (plans.vpp - 1.0) * plans.pp + 1.0
    return minimum(passes / plans.vpp, micro_batches)


@formula("s", "derived")
def straggler_s(s: CostContext, plans: Plans, parts: dict[str, FloatArray]) -> FloatArray:
    """Seconds lost to the slowest node: a share per doubling of the nodes that sync in every layer.

    ZeRO-3 shards and experts synchronise in each layer, where noise does not average out;
    data-parallel replicas do so once per step, when it has.  Nodes behind one switch count as one:
    from 32 to 64 expert-parallel ranks inside a rack cost nothing more (MLPerf v6.0, DeepSeek-V3).
    """
    placement = Placement(plans)
    domain = max(s.nodes.accelerators_per_node, s.nodes.network[0].domain_accelerators or 1)
    shards = where(plans.zero_stage == 3, placement.shard.size * placement.shard.stride, 1)
    experts = where(plans.ep > 1, plans.ep * placement.ep.stride, 1)
    doublings = np.log2(maximum(maximum(shards, experts) / domain, 1.0))
    total: FloatArray = s.machine.fitted.straggler * doublings * sum_of(parts.values())
    return per_row(total, len(plans))


@formula("s", "derived")
def imbalance_s(s: CostContext, g: KeyedPlans, times: BlockTimes) -> FloatArray:
    """Seconds for which data-parallel ranks wait for the one whose packs have most attention work.

    They synchronise once per step, with ZeRO-2 and 3 in every micro-batch; over the packs between,
    their work averages out.  If samples are assigned to ranks by length, see `waiting_share`.
    Not modelled: micro-batches of a pipeline that wait for a longer one.
    """
    plans, training = g.plans, s.training
    if not training.packs:
        return np.zeros(len(plans))
    attention: Array = 0.0
    for kernels, count in zip(times.kernels, g.table.totals, strict=True):
        each = (t for t in kernels if isinstance(t.kernel, FlashAttention))
        seconds = sum_of(t.forward_s + t.backward_s for t in each)
        by_key = per_row(seconds, len(g.layer_plans))
        attention = attention + g.stages.spread(count) * g.layers.spread(by_key) / plans.pp
    between = plans.micro_batch_size * where(plans.zero_stage >= 2, 1.0, g.micro_batches)
    spread = variation(lengths_of(training), float(training.seq_length)) / np.sqrt(between)
    lost: FloatArray = g.micro_batches * attention * spread * expected_maximum(plans.dp)
    if any_of(dynamic := is_dynamic(training, plans)):
        busy = g.micro_batches * stage_s(s, g, times, 0)
        lost = where(dynamic, busy * waiting_share(training, plans), lost)
    return per_row(lost, len(plans))


def _extra_s(g: KeyedPlans, costs: Costs) -> Array:
    """Seconds for which the busiest rank waits for the others, by each schedule's closed form.

    Where a schedule has none, a small simulation at about the same costs is scaled (shares.py).
    """
    plans, m = g.plans, g.micro_batches

    def extra(schedule: PipelineSchedule) -> Array:
        closed: Array = np.nan
        if schedule.extra_s is not None:
            closed = schedule.extra_s(costs, plans.pp, plans.vpp, m)
        open_rows = np.isnan(closed) & (plans.schedule == code("schedule", schedule.id))
        if not any_of(open_rows):
            return closed
        simulated = simulated_extra_s(schedule, plans, m, costs, open_rows)
        return where(np.isnan(closed), simulated, closed)

    # A single rank never waits, whatever its schedule.
    return where(plans.pp == 1, 0.0, by_schedule(plans, extra))


def _uneven_extra_s(g: KeyedPlans, times: BlockTimes, bubble_s: FloatArray) -> FloatArray:
    """The same where the virtual stages of a rank are not alike, and closed forms do not hold."""
    plans, result = g.plans, bubble_s.copy()
    schedules = per_row(plans.schedule, len(plans))
    micro_batches = per_row(g.micro_batches, len(plans))
    keys = np.zeros(len(plans), dtype=np.int64) if g.stages.inverse is None else g.stages.inverse
    for key, virtual in g.table.virtual.items():
        rows = np.flatnonzero(keys == key)
        if not len(rows):
            continue
        stages = int(virtual.owner[-1]) + 1  # a loop ends on the last rank
        chunks = len(virtual.owner) // stages
        if 3 * (ROUNDS + 2) * stages * stages * chunks > MOST_ACTIONS:
            continue  # the closed form stands
        schedule = SCHEDULES[VOCABULARIES["schedule"][int(schedules[rows[0]])]]
        seconds = times.virtual_stages_s(virtual, rows)
        result[rows] = uneven_extra_s(schedule, stages, chunks, micro_batches[rows], *seconds)
    return result


def message_s(g: KeyedPlans, dp: DataParallelSeconds) -> Array:
    """Seconds of one pipeline message over the slowest hop."""
    at_state = g.state.spread
    on_link = g.layers.spread(g.bytes.message) * at_state(dp.message_s_per_byte)
    seconds: Array = at_state(dp.message_latency_s) + on_link
    return seconds


def messages(g: KeyedPlans) -> Array:
    """Pipeline messages that a rank sends per step: activations on and gradients back, by chunk.

    The ends of the pipeline send fewer; the price is that of a stage between them.
    """
    return 2.0 * g.micro_batches * g.plans.vpp


def _pipeline_s(
    s: CostContext, g: KeyedPlans, dp: DataParallelSeconds, forward: Array, backward: Array
) -> Array:
    """Pipeline messages that are not hidden.

    Filling and draining shows 2 (p-1) messages.  In steady state a rank sends and receives v
    messages each way per micro-batch; interleaving lets them run under the next chunk
    (megatron-core switches that overlap off for plain 1F1B), but not while the first micro-batch
    is on its way through all chunks, nor the last on its way back.
    """
    plans = g.plans
    if all_of(plans.pp == 1):
        return 0.0
    message = message_s(g, dp)
    hidden = (plans.overlap_p2p > 0) & (plans.vpp > 1)
    chunk_s = (forward + backward) / (2.0 * plans.vpp)
    steady = where(hidden, maximum(message - chunk_s, 0.0), message)
    ways = 1.0 + g.runtime.messages_one_way
    filling = by_schedule(
        plans, lambda one: (one.shown_messages or one.messages)(plans.pp, plans.vpp)
    )
    filling = where(hidden, filling, 2.0 * (plans.pp - 1))
    shown = filling * message + ways * messages(g) * steady
    return where(plans.pp > 1, shown, 0.0)
