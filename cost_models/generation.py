"""One engine that generates: seconds of a pass, and memory, from a model and its accelerators.

A decode pass is a forward pass of one token per sequence: it reads all weights that it uses and
the caches of all sequences.  A prefill pass is one of many tokens of few prompts.  Kernels come
from the same records of blocks as in training (their weights), priced with the same efficiencies.
Not modelled: preemption, quantized kernels that dequantize, pipeline parallelism of engines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cost_models.arrays import sum_of
from cost_models.blocks.embedding import padded_vocab_size
from cost_models.blocks.records import Cached, Split, Weight
from cost_models.estimate import CostModel
from cost_models.kernel_times import NARROW_BYTES
from cost_models.kernels import gemm_s, memory_pass_s
from cost_models.layers import layers_of
from cost_models.parameters import total_parameters
from cost_models.placement import Axis
from cost_models.sources import Array, formula
from cost_models.spec import ModelSpec

# Scheduler, inputs and outputs of a step on the host, which runs beside the device's step: 0.54 ms
# at few requests, 12.7 us more for each that runs (openfabric-systems/simllm#204, vLLM 0.27).
HOST_STEP_S, HOST_SEQUENCE_S = 0.54e-3, 12.7e-6
# Between two steps the device waits for the next one's launch: 6.5 ms per token of Llama 3.1 8B on
# an H100 alone (vLLM 0.21), where its kernels need 6.0.
LAUNCH_S = 0.3e-3
# Kernels of a layer besides its products and attention: two norms with their residuals, the
# activation, rotary positions, and the write of keys and values; passes over hidden-wide rows.
SMALL_KERNELS, SMALL_PASSES = 5.0, 12.0
# Bytes that sampling moves per logit: cast to fp32, temperature, log-softmax, noise and argmax.
SAMPLING_BYTES = 32.0
# Engines reduce small tensors over NVLink by kernels of their own (vLLM custom_all_reduce.cuh,
# TensorRT-LLM's one- and two-shot): all ranks read what they need at once.
ALL_REDUCE_S = 7e-6
# Share of the peak that attention over long prompts reaches in a prefill, and absorbed latent
# attention in a decode (FlashMLA: 660 TFLOP/s on an H800).
PREFILL_ATTENTION_FRACTION, LATENT_FRACTION = 0.5, 0.6
STATE_BYTES = 4.0
# What an engine needs besides weights and caches: activations of a pass of prompts, graphs.
WORKSPACE_BYTES = 3e9
NUMBER_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0, **NARROW_BYTES}


@formula("1", "derived")
def experts_used(experts: Array, top_k: Array, tokens: Array) -> Array:
    """Expected share of the experts that some of the tokens choose, each uniformly."""
    missed = np.maximum(1.0 - np.divide(top_k, experts), 0.0)
    return 1.0 - missed ** np.asarray(tokens, dtype=np.float64)


@formula("s", "roofline")
def cache_read_s(
    read_bytes: Array, flop: Array, memory_bytes_per_s: float, flop_per_s: float
) -> Array:
    """Seconds in which the queries of a decode pass read the caches of their sequences."""
    return np.maximum(read_bytes / memory_bytes_per_s, flop / flop_per_s)


@dataclass(frozen=True)
class Engine:
    """A copy of the model on `tp` accelerators next to each other.

    expert_parallel: whole experts on each accelerator instead of a part of each.
    weights, cache: number formats of matrices, and of keys and values.
    """

    cost: CostModel
    tp: int = 1
    expert_parallel: bool = False
    weights: str = "bf16"
    cache: str = "bf16"

    @property
    def model(self) -> ModelSpec:
        """The model that generates."""
        return self.cost.context.model

    @cached_property
    def _split(self) -> Split:
        ep = self.expert_parallel
        return Split(self.tp, 1.0 if ep else self.tp, self.tp if ep else 1.0)

    @cached_property
    def _bandwidth(self) -> float:
        """Bytes per second of a long stream from memory."""
        profile = self.cost.context.profile
        return self.cost.context.nodes.accelerator.memory_bytes_per_s * float(profile.memory.y[-1])

    @cached_property
    def _flop_per_s(self) -> float:
        machine = self.cost.context.machine
        if self.weights in NARROW_BYTES:
            weight_peak = machine.accelerator.peak_flop_per_s(self.weights)
            return weight_peak or machine.matrix_flop_per_s
        return machine.matrix_flop_per_s

    @cached_property
    def weight_bytes(self) -> float:
        """Bytes of the weights on one accelerator."""
        context, narrow = self.cost.context, NUMBER_BYTES[self.weights]
        layers = layers_of(self.model)
        total = 0.0
        for kind, count in zip(layers.kinds, layers.counts, strict=True):
            for weight in kind.weights(self.model, self._split):
                total += count * float(weight.elements) * (narrow if weight.matrix else 2.0)
        ends = total_parameters(context.model) - sum(
            count * float(sum_of(w.elements for w in kind.weights(self.model, Split())))
            for kind, count in zip(layers.kinds, layers.counts, strict=True)
        )
        return total + 2.0 * ends / self.tp

    def _product_s(self, weight: Weight, tokens: Array) -> Array:
        """Seconds of the product of so many tokens with one weight."""
        profile, narrow = self.cost.context.profile, self.weights in NARROW_BYTES
        efficiency = profile.gemm[self.weights if narrow else "bf16"]
        streamed = replace(efficiency, memory_fraction=float(profile.memory.y[-1]))
        inner = weight.side or float(self.model.hidden_size)
        rows: Array = np.asarray(tokens, dtype=np.float64)
        copies: Array = float(np.max(weight.copies))
        share = 1.0
        if weight.expert:
            moe = self.model.moe
            assert moe is not None
            used = experts_used(moe.num_experts, moe.top_k, rows)
            rows = np.maximum(rows * weight.used / used, 1.0)
            copies, share = copies * used, profile.grouped_gemm[0]
        width = float(np.max(weight.elements)) / float(np.max(weight.copies)) / inner
        steady = self.cost.fitted.sustained_fraction(profile.steady)
        return gemm_s(
            rows, width, inner, self._flop_per_s * steady * share,
            self.cost.context.nodes.accelerator.memory_bytes_per_s, streamed,
            NUMBER_BYTES[self.weights], 2.0, copies,
        )  # fmt: skip

    def _reduced_s(self, tokens: Array) -> Array:
        """Seconds to add up a block's output over the engine's accelerators."""
        if self.tp == 1:
            return 0.0
        fabric, nodes = self.cost.context.fabric, self.cost.context.nodes
        payload = 2.0 * np.asarray(tokens, dtype=np.float64) * self.model.hidden_size
        axis = Axis(np.array(self.tp), np.array(1))
        library = fabric.transfer("all_reduce", payload, axis)
        first = nodes.network[0]
        if first.domain_accelerators is not None and first.domain_accelerators < self.tp:
            return library
        moved = 2.0 * (self.tp - 1) / self.tp * payload
        return np.minimum(library, ALL_REDUCE_S + moved / first.bandwidth_bytes_per_s)

    def layers_s(self, tokens: Array) -> Array:
        """Seconds of all layers for so many tokens, without what attention reads."""
        profile = self.cost.context.profile
        layers, hidden = layers_of(self.model), float(self.model.hidden_size)
        bandwidth = self.cost.context.nodes.accelerator.memory_bytes_per_s
        moved = SMALL_PASSES * 2.0 * np.asarray(tokens, dtype=np.float64) * hidden
        small = SMALL_KERNELS * memory_pass_s(
            moved / SMALL_KERNELS, bandwidth, profile.memory, profile.memory_floor_s
        )
        total: Array = 0.0
        for kind, count in zip(layers.kinds, layers.counts, strict=True):
            products = sum_of(
                self._product_s(weight, tokens)
                for weight in kind.weights(self.model, self._split)
                if weight.matrix
            )
            reduced = 2.0 * self._reduced_s(tokens)
            total = total + count * (products + small + reduced + profile.memory_floor_s)
        return total

    @cached_property
    def _cached(self) -> tuple[tuple[int, Cached], ...]:
        """What each kind of layer keeps, with the number of such layers."""
        layers = layers_of(self.model)
        return tuple(
            (count, record)
            for kind, count in zip(layers.kinds, layers.counts, strict=True)
            for sublayer in kind.sublayers
            for record in sublayer.cached(self.model, self._split)
        )

    def cache_bytes(self, tokens: Array) -> Array:
        """Bytes that one accelerator keeps of a sequence of so many tokens."""
        length, width = np.asarray(tokens, dtype=np.float64), NUMBER_BYTES[self.cache]
        return sum_of(
            count
            * (
                width * record.elements * np.minimum(length / record.every, record.tokens)
                + STATE_BYTES * record.state_elements
            )
            for count, record in self._cached
        ) + np.zeros_like(length)

    def read_s(self, tokens: Array) -> Array:
        """Seconds in which one query reads the cache of a sequence of so many tokens."""
        length, width = np.asarray(tokens, dtype=np.float64), NUMBER_BYTES[self.cache]
        rate = LATENT_FRACTION * self.cost.context.machine.matrix_flop_per_s
        total: Array = np.zeros_like(length)
        for count, record in self._cached:
            cached_tokens = np.minimum(length / record.every, min(record.tokens, record.read))
            state = 2.0 * STATE_BYTES * record.state_elements
            read_bytes = width * record.elements * cached_tokens + state
            total = total + count * cache_read_s(
                read_bytes, record.flop * cached_tokens, self._bandwidth, rate
            )
        return total

    def head_s(self, sequences: Array) -> Array:
        """Seconds of the logits of so many tokens, and of sampling one token from each."""
        rows = padded_vocab_size(self.model.vocab_size, self.tp, 64) / self.tp
        head = Weight("head", rows * self.model.hidden_size, matrix=True)
        wide = replace(self, weights="bf16")
        logits = np.asarray(sequences, dtype=np.float64) * self.model.vocab_size
        profile = self.cost.context.profile
        bandwidth = self.cost.context.nodes.accelerator.memory_bytes_per_s
        sampled = memory_pass_s(
            SAMPLING_BYTES * logits, bandwidth, profile.memory, profile.memory_floor_s
        )
        return wide._product_s(head, sequences) + sampled

    def decode_s(self, sequences: Array, queries: float = 1.0) -> Array:
        """Seconds of a decode pass without what attention reads; queries: tokens per sequence."""
        count = np.asarray(sequences, dtype=np.float64)
        device = self.layers_s(count * queries) + self.head_s(count * queries) + LAUNCH_S
        return np.maximum(device, HOST_STEP_S + HOST_SEQUENCE_S * count)

    def prefill_s(self, prompt_tokens: float, chunk_tokens: float = 8192.0) -> float:
        """Seconds of one prompt, in passes that are filled with tokens of many."""
        machine = self.cost.context.machine
        each = float(self.layers_s(np.array(chunk_tokens))) / chunk_tokens
        flop = sum(
            count * float(np.max(record.flop)) * min(prompt_tokens / 2.0, record.tokens)
            for count, record in self._cached
        )
        rate = PREFILL_ATTENTION_FRACTION * machine.matrix_flop_per_s
        return prompt_tokens * (each + flop / rate)
