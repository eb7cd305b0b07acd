"""Parameters on each rank, and the seconds of communicating their gradients and weights.

Computed once per distinct (tp, cp, pp, dp, dp_shard, ep, etp, rank order) and gathered by the
composer.  Collectives of a step run in buckets, so their seconds are linear in the bytes; ZeRO-3
moves one layer at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from cost_models import parameters
from cost_models.arrays import laid_out, maximum, minimum, sum_of, where
from cost_models.blocks.head import Head
from cost_models.blocks.norm import norm_parameters
from cost_models.blocks.records import Split, Weight
from cost_models.encoders import before_layers
from cost_models.layers import layers_of
from cost_models.network import Fabric
from cost_models.overheads import placeholder_parameters
from cost_models.placement import Axis, Placement
from cost_models.plans import Plans
from cost_models.runtimes import traits
from cost_models.runtimes.base import Traits
from cost_models.sources import Array, formula
from cost_models.spec import DTYPE_BYTES, ModelSpec, TrainingSpec
from cost_models.trainable import TrainableModel, frozen_bytes, stored_bytes
from cost_models.units import GB

FloatArray = NDArray[np.float64]
BUCKET_PARAMETERS = 40e6
BUCKET_PARAMETERS_PER_RANK = 1e6
# The first and the last stage, which hold copies of one word table.
EMBEDDING = "embedding"


@formula("1", "megatron-core")
def bucket_parameters(ranks: Array) -> Array:
    """Parameters of one gradient bucket with d data-parallel ranks: max(40e6, 1e6 d)."""
    return maximum(BUCKET_PARAMETERS, BUCKET_PARAMETERS_PER_RANK * ranks)


def unsharded_bucket_parameters(runtime: Traits, training: TrainingSpec, bucket: Array) -> Array:
    """Parameters that are reduced at one time without ZeRO; bucket: as with it."""
    masters = np.asarray(runtime.weights_are_masters) * (training.master_weights_dtype == "fp32")
    weight_bytes = where(masters > 0, DTYPE_BYTES["fp32"], training.gathered_weight_bytes)
    ddp = np.asarray(runtime.ddp_bucket_bytes)
    return where(ddp > 0, ddp / weight_bytes, bucket)


def reduced_bucket_parameters(runtime: Traits, training: TrainingSpec, plans: Plans) -> Array:
    """Parameters of a bucket of each plan's gradients."""
    bucket = bucket_parameters(plans.dp * plans.cp)
    whole = unsharded_bucket_parameters(runtime, training, bucket)
    return where(plans.zero_stage >= 1, bucket, whole)


@dataclass(frozen=True)
class StoredParameters:
    """Parameters of one building block per rank: replicated over dp x cp, and routed experts."""

    plain: FloatArray
    expert: FloatArray


@dataclass(frozen=True)
class HeldParameters:
    """Parameters per rank by key, and over how many ranks ZeRO spreads their states.

    layers: by kind; placeholders: those that have one (overheads), of blocks that the same kinds
    of layers share; widest: the largest matrix; widest_together:
    where the experts of a layer are one.
    """

    layers: tuple[StoredParameters, ...]
    placeholders: dict[tuple[int, ...], FloatArray]
    embedding: FloatArray
    word_table: FloatArray
    widest: FloatArray
    widest_together: FloatArray
    head: FloatArray
    mtp: FloatArray
    shards: FloatArray
    expert_shards: FloatArray


@dataclass(frozen=True)
class Rates:
    """Seconds per byte of bucketed collectives over one shard group (and its replicas)."""

    reduce_scatter_s_per_byte: FloatArray
    all_reduce_s_per_byte: FloatArray
    all_gather_s_per_byte: FloatArray


@dataclass(frozen=True)
class DataParallelSeconds:
    """Rates of collectives over parameters, and one block's ZeRO-2/3 collectives, by key."""

    plain: Rates
    expert: Rates
    layer_gather_s: tuple[FloatArray, ...]
    layer_reduce_s: tuple[FloatArray, ...]
    end_gather_s: FloatArray
    end_reduce_s: FloatArray
    tied_reduce_s: FloatArray
    message_latency_s: FloatArray
    message_s_per_byte: FloatArray


@dataclass(frozen=True)
class Amounts:
    """The amount per trained and per frozen weight; frozen_head, frozen_end: per frozen one of the
    head, and before the layers.
    """

    trained: float = 1.0
    frozen: Array = 1.0
    frozen_head: Array = 1.0
    frozen_end: float = 1.0


TRAINED = Amounts(frozen=0.0, frozen_head=0.0, frozen_end=0.0)


def gathered_amounts(training: TrainingSpec) -> Amounts:
    """The amounts that ZeRO-3 gathers, in trained weights: frozen ones may be narrower."""
    return Amounts(frozen=stored_bytes(training) / training.gathered_weight_bytes)


def frozen_amounts(training: TrainingSpec, plans: Plans, reference: float) -> Amounts:
    """Bytes of frozen weights, and of the reference copies of each weight."""
    copy = reference * training.weight_bytes
    runtime = traits(plans.runtime)
    stored = frozen_bytes(training, runtime)
    half = float(DTYPE_BYTES["fp32"] if training.widens_frozen else training.weight_bytes)
    packs = runtime.packs_head * training.packs_frozen
    return Amounts(copy, stored + copy, half + packs * (stored - half) + copy, half + copy)


def held_parameters(
    model: ModelSpec,
    plans: Plans,
    training: TrainingSpec | None = None,
    amounts: Amounts = Amounts(),
) -> HeldParameters:
    """Parameters per rank; `plans` holds one row per key.  training: None trains all of them."""
    full = partial(laid_out, count=len(plans))
    placement = Placement(plans)
    tp, etp, ep = (np.asarray(a, dtype=np.float64) for a in (plans.tp, plans.etp, plans.ep))
    split = Split(tp, etp, ep)
    trainable = TrainableModel(model, training or TrainingSpec(seq_length=1, global_batch_size=1))

    def counted(weights: Iterable[Weight]) -> Array:
        each = (w.elements * (amounts.trained if w.trained else amounts.frozen) for w in weights)
        return sum_of(each)

    def end(part: str) -> Array:
        frozen = amounts.frozen_head if part == Head.part else amounts.frozen_end
        return amounts.trained if trainable.training.trains(part) else frozen

    layers, table = [], layers_of(model)
    for kind in table.kinds:
        weights = tuple(trainable.weights(kind, split))
        plain = counted(w for w in weights if not w.expert)
        layers.append(StoredParameters(full(plain), full(counted(w for w in weights if w.expert))))
    placeholders = {
        kinds: full(
            sum_of(placeholder_parameters(trainable.trained(block, split)) for block in blocks)
        )
        for kinds, blocks in table.shared.items()
    }
    word_table = parameters.padded_vocab_size(float(model.vocab_size), tp) / tp * model.hidden_size
    head = parameters.output_layer_parameters(model, tp)
    # With a pipeline the last stage holds copies of the word table: one to share it with the head,
    # one to embed the tokens that multi-token prediction looks ahead to.
    copies = model.tied_embeddings + (model.mtp_num_layers > 0)
    if trainable.training.loss == "reward":
        head = np.asarray(norm_parameters(model, model.hidden_size) + model.hidden_size)
        copies = False
    head = head + copies * where(plans.pp > 1, word_table, 0.0)
    # The layers of multi-token prediction are counted with the last stage's.
    predictions = model.mtp_num_layers * parameters.prediction_parameters(model, tp)
    return HeldParameters(
        layers=tuple(layers),
        placeholders=placeholders,
        embedding=full(
            sum_of(
                parameters.elements(block.weights(model, Split(tp))) * end(block.part)
                for block in before_layers(model)
            )
        ),
        word_table=full(word_table * end("embedding")),
        widest=full(parameters.widest_matrix_parameters(model, split)),
        widest_together=full(parameters.widest_matrix_parameters(model, split, together=True)),
        head=full(head * end("head")),
        mtp=full(predictions * end("head")),
        shards=full(placement.shard.size),
        expert_shards=full(placement.expert_shard.size),
    )


def data_parallel_seconds(
    model: ModelSpec,
    training: TrainingSpec,
    fabric: Fabric,
    plans: Plans,
    counts: HeldParameters,
    trained: HeldParameters,
    zero_stages: frozenset[int],
) -> DataParallelSeconds:
    """Seconds per key; `plans` holds one row per key.

    counts: of the parameters that ZeRO-3 gathers; trained: of those that are reduced.
    zero_stages: the stages any plan uses; collectives of no use to them are left at zero.
    """
    runtime, placement = traits(plans.runtime), Placement(plans)
    prices = _GroupSeconds(fabric, plans, placement, counts, zero_stages)
    zero, full = np.zeros(len(plans)), partial(laid_out, count=len(plans))
    reduce_bytes = DTYPE_BYTES[training.gradient_reduce_dtype]
    weight_bytes = training.gathered_weight_bytes
    tied: FloatArray = zero
    if (model.tied_embeddings or model.mtp_num_layers) and training.trains("embedding"):
        stride = placement.pp.stride * maximum(plans.pp - 1, 1)
        ends = Axis(minimum(plans.pp, 2), stride, EMBEDDING)
        tied = prices.of("all_reduce", counts.embedding * reduce_bytes, ends)
    latency = prices.of("send", 0.0, placement.pp)
    narrow = np.asarray(runtime.gathers_cast_weights) * (training.precision == "fp8")
    gathered_bytes = where(narrow > 0, 1.0, weight_bytes)
    # A measured rate depends on the size of what is reduced at one time.
    by_block = (np.asarray(runtime.reduces_by_block) > 0) & bool(fabric.grids)
    last = maximum(counts.layers[layers_of(model).order[-1]].plain, 1.0)

    def rates(data: Axis, shard: Axis, replicate: Axis) -> Rates:
        bucket = where(by_block, last, bucket_parameters(full(data.size)))
        whole = unsharded_bucket_parameters(runtime, training, bucket)
        payloads = (bucket * reduce_bytes, bucket * weight_bytes, whole * reduce_bytes)
        return prices.rates(payloads, data, shard, replicate)

    experts = Rates(zero, zero, zero)
    if model.moe is not None:
        experts = rates(placement.expert_data, placement.expert_shard, placement.expert_replicate)
    return DataParallelSeconds(
        plain=rates(placement.data, placement.shard, placement.replicate),
        expert=experts,
        layer_gather_s=tuple(prices.gathered(gathered_bytes, block) for block in counts.layers),
        layer_reduce_s=tuple(prices.reduced(reduce_bytes, block) for block in trained.layers),
        end_gather_s=prices.gathered(weight_bytes, StoredParameters(counts.embedding, zero)),
        end_reduce_s=prices.reduced(reduce_bytes, StoredParameters(trained.embedding, zero)),
        tied_reduce_s=tied,
        message_latency_s=latency,
        message_s_per_byte=(prices.of("send", GB, placement.pp) - latency) / GB,
    )


class _GroupSeconds:
    """Seconds of collectives of the groups of some plans, one row per key."""

    def __init__(
        self,
        fabric: Fabric,
        plans: Plans,
        placement: Placement,
        counts: HeldParameters,
        zero_stages: frozenset[int],
    ) -> None:
        self._fabric, self._zero = fabric, zero_stages
        self._placement, self._counts = placement, counts
        self._full = partial(laid_out, count=len(plans))
        self._none = np.zeros(len(plans))

    def of(self, op: str, payload: Array, axis: Axis) -> FloatArray:
        """One collective of a group along an axis."""
        return self._full(self._fabric.transfer(op, payload, axis))

    def rates(
        self, payloads: tuple[Array, Array, Array], data: Axis, shard: Axis, replicate: Axis
    ) -> Rates:
        """Seconds per byte; payloads: bytes of one bucket's gradients, of its weights, and of the
        gradients of one that is not sharded.
        """
        payload, weights, whole = payloads
        across = self.of("all_reduce", payload / self._full(shard.size), replicate)
        all_reduce: FloatArray = self._none
        if {0, 1} & self._zero:
            all_reduce = self.of("all_reduce", whole, data) / whole
        return Rates(
            (self.of("reduce_scatter", payload, shard) + across) / payload,
            all_reduce,
            self.of("all_gather", weights, shard) / weights,
        )

    def gathered(self, element_bytes: Array, block: StoredParameters) -> FloatArray:
        """One block's weights gathered in every micro-batch, which ZeRO-3 does."""
        return self._shared("all_gather", element_bytes, block) if 3 in self._zero else self._none

    def reduced(self, element_bytes: Array, block: StoredParameters) -> FloatArray:
        """One block's gradients reduced in every micro-batch, which ZeRO-2 and 3 do."""
        if not {2, 3} & self._zero:
            return self._none
        placement, counts = self._placement, self._counts
        seconds = self._shared("reduce_scatter", element_bytes, block)
        plain = block.plain * element_bytes / counts.shards
        seconds = seconds + self.of("all_reduce", plain, placement.replicate)
        expert = block.expert * element_bytes / counts.expert_shards
        return seconds + self.of("all_reduce", expert, placement.expert_replicate)

    def _shared(self, op: str, element_bytes: Array, block: StoredParameters) -> FloatArray:
        """A collective of one block over its shard groups."""
        seconds = self.of(op, block.plain * element_bytes, self._placement.shard)
        return seconds + self.of(op, block.expert * element_bytes, self._placement.expert_shard)
