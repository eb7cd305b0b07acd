"""Seconds of one kernel from its record: its efficiency, its peak rate and its extra passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from cost_models.arrays import any_of, maximum, where
from cost_models.blocks.records import FlashAttention, Gemm, Kernel, MemoryBoundKernel, Record, Scan
from cost_models.dims import Dims
from cost_models.fitted import Fitted
from cost_models.kernels import attention_s, gemm_flop, gemm_s, memory_pass_s
from cost_models.measured_tables import Measured
from cost_models.network import Fabric
from cost_models.profiles import EfficiencyProfile
from cost_models.sources import Array, formula
from cost_models.spec import AcceleratorSpec

# Tiles per multiprocessor by which a launch idles at its end, and the rate of backward with heads
# of 192 and 128 over that with equal heads (SimuMax @4dcaae51 sdp tables, A100 and B200).
IDLE_TILES = {"forward": 1.5, "backward": 0.5}
UNEQUAL_BACKWARD = 0.8
FLASH_BACKWARD_FLOP = 2.5  # five GEMMs against two (flash-attention-2)
# Rate of the fp32 units over the tensor cores: 19.5 / 312 on the A100, 67 / 989 on the H100.
VECTOR_FRACTION = 1 / 16
# Rate of weight-gradient GEMMs over forward ones of equal FLOP (SimuMax @4dcaae51 kernel tables:
# A100 0.681 / 0.717, B200 0.481 / 0.494).
WEIGHT_GRADIENT_FRACTION = 0.96
# In both gradients Hopper adds fp8 products to fp32 registers at intervals (torchao config.py,
# Transformer Engine _2X_ACC_DGRAD): without it 1.1 to 1.2 times as fast (pytorch/ao#2377).
SPLIT_ACCUMULATOR = 1 / 1.15
# FlashAttention-2 over the Triton FlashAttention before it: 1.3 to 1.5 times as fast forward, about
# twice backward (flash-attention-2, section 4.1).  Before Ampere torch and xformers have a kernel
# of that generation, the memory-efficient one of CUTLASS, beside which the same section sets it.
FLASH1_SLOWDOWN = {"forward": 1.4, "backward": 2.0}
# Rate of fp8 GEMMs over those with one scale per tensor.  Rowwise: 1.11 times bf16 where tensorwise
# is 1.73 times (torchao float8 README and issue pytorch/torchtitan#1207); blockwise: 0.452 / 0.503
# of peak on the H100 (aiconfigurator); block scales of Blackwell are applied by its matrix units.
FP8_RECIPE_FRACTION = {
    "tensorwise": 1.0, "delayed": 1.0, "rowwise": 0.64, "blockwise": 0.9, "mxfp8": 1.0,
}  # fmt: skip
WHOLE_TENSOR_RECIPES = ("tensorwise", "delayed")
# Share of the peak that the small products of a chunked recurrence reach, and of the vector units
# that an elementwise one does (derived: no benchmark is bound by them).
SCAN_FRACTION = 0.3
# States again, then their gradients backward in time, then those of the inputs: three sweeps.
SCAN_BACKWARD = 3.0
# What a multiprocessor moves of copies that widen half precision to fp32 (132 of an H200).
WIDENING_BYTES_PER_S = 1.75e12 / 132
# Half-precision elements in the 16 bytes that a row has to begin at for kernels of the newest
# tensor cores, and how much longer others take (130.6 against 37.0 us on H100).
ALIGNED_ELEMENTS, UNALIGNED_SLOWDOWN = 8.0, 3.5
HALF_BYTES = 2.0
# Bytes of one operand: NVFP4 has a one-byte scale for each 16 values (Transformer Engine).
NARROW_BYTES = {"fp8": 1.0, "fp4": 0.5625}


@dataclass(frozen=True)
class KernelTime:
    """One line of the kernel table: seconds and FLOP of one pass over one layer.

    backward_s holds both gradients; weight_gradient_s the weights' share of it.
    """

    kernel: Kernel
    forward_s: Array
    backward_s: Array
    weight_gradient_s: Array
    forward_flop: Array


@dataclass(frozen=True)
class Machine:
    """The inputs of a kernel's time other than its record."""

    accelerator: AcceleratorSpec
    profile: EfficiencyProfile
    fabric: Fabric
    precision: str
    gradient_bytes: float
    fp8_recipe: str
    fitted: Fitted
    neighbours: int = 1
    """Ranks at work on one node."""
    instant: bool = False
    """Whether kernels take no time, so that only network traffic remains (traffic.py)."""

    @property
    def wide(self) -> str:
        """The precision of kernels that are not in fp8 or fp4: fp16, fp32 or else bf16."""
        return self.precision if self.precision in ("fp16", "fp32") else "bf16"

    @property
    def matrix_flop_per_s(self) -> float:
        """Peak rate of matrix products that are not in fp8 or fp4 (fp8 training has some)."""
        peak = self.accelerator.peak_flop_per_s(self.wide) or self.accelerator.peak_fp16_flop_per_s
        assert peak is not None
        return peak


@formula("s", "roofline", "aiconfigurator", "tensor-cores", "kestrel")
def kernel_time(kernel: Kernel, machine: Machine, d: Dims) -> KernelTime:
    """Forward and backward seconds of one kernel (arrays over keys)."""
    if machine.instant:
        return _time(kernel, 0.0, 0.0, 0.0, 0.0)
    bandwidth = machine.accelerator.memory_bytes_per_s
    profile = machine.profile

    def memory_s(moved_bytes: Array) -> Array:
        return memory_pass_s(moved_bytes, bandwidth, profile.memory, profile.memory_floor_s)

    measured = _measured_s(kernel, machine)
    if measured is not None:
        flop = 0.0 if isinstance(kernel, MemoryBoundKernel) else _forward_flop(kernel)
        return _time(kernel, *measured, flop)
    if isinstance(kernel, MemoryBoundKernel):
        # Passes are counted in half precision.
        wider = d.activation_bytes / HALF_BYTES
        forward, backward = (
            memory_s(moved * wider) + _behind_s(widened, memory_s, machine)
            for moved, widened in zip(
                (kernel.forward_bytes, kernel.backward_bytes), kernel.widened_bytes, strict=True
            )
        )
        return _time(kernel, forward, backward, 0.0, 0.0)
    if isinstance(kernel, Scan):
        forward = scan_s(kernel, machine)
        return _time(kernel, forward, SCAN_BACKWARD * forward, 0.0, kernel.forward_flop)
    if isinstance(kernel, FlashAttention):
        forward, backward = _attention_time(kernel, machine)
        return _time(kernel, forward, backward, 0.0, kernel.forward_flop)
    return _gemm_time(kernel, machine, d, memory_s)


@formula("s", "gpu-day")
def _behind_s(widened_bytes: Array, memory_s: Callable[[Array], Array], machine: Machine) -> Array:
    """Seconds by which widening copies take longer than memory does.

    torch's are not vectorised: on an H200 one moved 1.75 TB/s where a narrowing one moved 4.2.
    """
    if not any_of(widened_bytes):
        return 0.0
    rate = WIDENING_BYTES_PER_S * machine.profile.gemm["bf16"].multiprocessors
    return maximum(widened_bytes / rate - memory_s(widened_bytes), 0.0)


def _forward_flop(kernel: Gemm | FlashAttention | Scan) -> Array:
    if not isinstance(kernel, Gemm):
        return kernel.forward_flop
    return gemm_flop(kernel.m, kernel.n, kernel.k) * kernel.groups


def _measured_pass_s(
    kernel: MemoryBoundKernel, machine: Machine, measured: Measured
) -> tuple[Array, Array, Array] | None:
    precision = machine.precision
    if kernel.kind == "repeat kv" and (precision, "forward") in measured.attention:
        return 0.0, 0.0, 0.0  # inside the measured attention
    slower = measured.slowdown("memory", machine.neighbours)
    sides = {"forward": kernel.forward_bytes, "backward": kernel.backward_bytes}
    tables = {side: measured.passes.get((precision, kernel.kind, side)) for side in sides}
    if not any(tables.values()):
        return None
    forward, backward = (
        slower * sides[side] / table.rate(sides[side]) if table else 0.0
        for side, table in tables.items()
    )
    return forward, backward, 0.0


def _measured_s(kernel: Kernel, machine: Machine) -> tuple[Array, Array, Array] | None:
    """Measured forward, backward and weight-gradient seconds; None if they were not measured.

    Measured kernels ran alone; they take longer while other ranks of the node work.
    """
    measured = machine.profile.measured
    if measured is None:
        return None
    precision = machine.precision
    if isinstance(kernel, MemoryBoundKernel):
        return _measured_pass_s(kernel, machine, measured)
    slower = measured.slowdown("gemm", machine.neighbours)
    flop = _forward_flop(kernel) * slower
    if isinstance(kernel, FlashAttention):
        if not {(precision, "forward"), (precision, "backward")} <= measured.attention.keys():
            return None
        at = kernel.head_dim, kernel.span
        flop = flop / kernel.rate
        return (
            flop / measured.attention[precision, "forward"].rate(*at),
            FLASH_BACKWARD_FLOP * flop / measured.attention[precision, "backward"].rate(*at),
            0.0,
        )
    if isinstance(kernel, Scan):
        return None
    products = ("forward", "input_gradient", "weight_gradient")
    grids = [measured.gemm.get((precision, product)) for product in products]
    if not kernel.weights or kernel.grouped:
        return None
    shape = kernel.m, kernel.n, kernel.k
    seconds = [where(flop > 0, flop / grid.rate(*shape), 0.0) for grid in grids if grid]
    if len(seconds) < len(products):
        return None
    forward, inputs, weights = seconds
    if not kernel.trained:
        return forward, inputs, 0.0
    return forward, inputs + weights, weights


@formula("s", "derived", "aiconfigurator")
def scan_s(kernel: Scan, machine: Machine) -> Array:
    """Forward seconds of a recurrence: of its FLOP, or of its longest chain of chunks.

    Each multiprocessor works on one (sequence, head) pair at a time; measured on Hopper and
    Blackwell 64 and 128 heads take the same, 256 twice as long.
    """
    units = machine.profile.gemm["bf16"].multiprocessors
    peak = machine.matrix_flop_per_s * (1.0 if kernel.matrices else VECTOR_FRACTION)
    chain = np.ceil(kernel.sequences / units) * kernel.tokens * kernel.token_s
    return maximum(kernel.forward_flop / (SCAN_FRACTION * peak), chain)


def _attention_time(kernel: FlashAttention, machine: Machine) -> tuple[Array, Array]:
    profile = machine.profile

    units = profile.gemm["bf16"].multiprocessors

    def seconds(version: str, name: str, share: float) -> Array:
        return attention_s(
            share * kernel.forward_flop,
            kernel.span,
            kernel.head_dim,
            machine.matrix_flop_per_s,
            profile.attention[(version, name, True)],
            profile.memory_floor_s,
            kernel.query_rows,
            IDLE_TILES[name] * profile.attention_tile_rows * units,
        )

    def both(name: str, share: float) -> Array:
        newest = seconds("flash", name, share)
        older = machine.accelerator.before_ampere
        if not any_of(kernel.flash2) and not any_of(kernel.flash1) and not older:
            return newest
        measured = ("flash2", name, True) in profile.attention
        second = seconds("flash2", name, share) if measured else newest
        first = second * FLASH1_SLOWDOWN[name]
        if older:
            return first
        return where(kernel.flash1 > 0, first, where(kernel.flash2 > 0, second, newest))

    backward = both("backward", FLASH_BACKWARD_FLOP) / kernel.rate
    forward = both("forward", 1.0) / kernel.rate
    return forward, backward / (UNEQUAL_BACKWARD if kernel.unequal else 1.0)


def _gemm_time(
    kernel: Gemm, machine: Machine, d: Dims, memory_s: Callable[[Array], Array]
) -> KernelTime:
    m, n, k, groups = kernel.m, kernel.n, kernel.k, kernel.groups
    narrow = machine.precision in NARROW_BYTES and kernel.fp8
    precision = machine.precision if narrow else machine.wide
    peak = _narrow_flop_per_s(machine) if narrow else machine.matrix_flop_per_s
    peak *= machine.fitted.sustained_fraction(machine.profile.steady)
    efficiency = machine.profile.gemm[precision]
    width = d.activation_bytes
    element = NARROW_BYTES[precision] if narrow else width

    fractions = _peak_fractions(kernel, machine, d)

    def seconds(which: int, a: Array, b: Array, c: Array, output_bytes: Array = width) -> Array:
        return gemm_s(
            a, b, c, peak * fractions[which], machine.accelerator.memory_bytes_per_s, efficiency,
            element, output_bytes, groups,
        )  # fmt: skip

    # Of XLA's backends only that of TPUs has such products.
    computed = m + kernel.shared_rows * (machine.profile.family == "tpu") * (m > 0)
    forward = seconds(0, computed, n, k)
    backward = seconds(1, computed, k, n)
    last: Array = 0.0
    if kernel.trained:
        # Transformer Engine adds the weight gradient to the fp32 accumulation buffer in place (read
        # and write); other runtimes write it in half precision and add it in a pass of its own.
        fused = kernel.weights * d.runtime.fused_accumulation
        last = seconds(2, k, n, computed, width + (2.0 * machine.gradient_bytes - width) * fused)
        if kernel.weights:
            last = last + memory_s(d.accumulate_bytes * k * n * groups)
        backward = backward + last
    if narrow and precision == "fp8" and machine.profile.family == "hopper":
        backward = backward / SPLIT_ACCUMULATOR
    if narrow:
        cast_forward, cast_backward = _cast_bytes(kernel, machine, d)
        forward = forward + memory_s(cast_forward)
        backward = backward + memory_s(cast_backward)
    of_weights = last if kernel.weights else 0.0
    return _time(kernel, forward, backward, of_weights, gemm_flop(m, n, k) * groups)


def _time(
    kernel: Kernel, forward: Array, backward: Array, weight_gradient: Array, flop: Array
) -> KernelTime:
    on = kernel.active
    return KernelTime(kernel, forward * on, backward * on, weight_gradient * on, flop * on)


def kernel_times(records: Iterable[Record], machine: Machine, d: Dims) -> dict[Kernel, KernelTime]:
    """Times of the kernels among some records, without kernels that run for no key."""
    return {
        record: kernel_time(record, machine, d)
        if any_of(record.active)
        else _time(record, 0.0, 0.0, 0.0, 0.0)
        for record in records
        if isinstance(record, Kernel)
    }


def _narrow_flop_per_s(machine: Machine) -> float:
    """The peak rate of matrix products in the machine's number format of one byte or less."""
    peak = machine.accelerator.peak_flop_per_s(machine.precision)
    assert peak is not None
    return peak * (FP8_RECIPE_FRACTION[machine.fp8_recipe] if machine.precision == "fp8" else 1.0)


def _peak_fractions(kernel: Gemm, machine: Machine, d: Dims) -> tuple[Array, ...]:
    """Shares of the peak rate of the forward, input-gradient and weight-gradient products."""
    if not kernel.tensor_cores:
        return (VECTOR_FRACTION,) * 3
    of_peak: tuple[Array, ...] = (1.0, 1.0, WEIGHT_GRADIENT_FRACTION)
    if kernel.weights and machine.profile.family != "tpu":
        odd = (np.mod(kernel.n, ALIGNED_ELEMENTS) > 0) | (np.mod(kernel.k, ALIGNED_ELEMENTS) > 0)
        of_peak = tuple(where(odd, share / UNALIGNED_SLOWDOWN, share) for share in of_peak)
    if not kernel.grouped:
        return of_peak
    plainly = np.asarray(d.runtime.calls_one_expert_plainly) > 0
    ungrouped = (np.asarray(kernel.groups) == 1.0) & plainly
    shares = machine.profile.grouped_gemm
    forward = of_peak[0]
    return tuple(
        where(ungrouped, plain, share * forward)
        for plain, share in zip(of_peak, shares, strict=True)
    )


def _cast_bytes(kernel: Gemm, machine: Machine, d: Dims) -> tuple[Array, Array]:
    """Read and written to cast the inputs of the forward pass, and of the backward pass.

    Transformer Engine reads 2 and writes the value and its transpose, one byte each; one that is
    compiled into the kernel before reads less.  Where one scale holds for the whole tensor, each
    rank casts its shard before the gather.
    """
    whole_tensor = machine.precision == "fp8" and machine.fp8_recipe in WHOLE_TENSOR_RECIPES
    shard = d.sharded_tokens / d.tokens if whole_tensor else 1.0
    inputs = kernel.m * kernel.k * kernel.groups * (shard if kernel.gathered_input else 1.0)
    gradients = kernel.m * kernel.n * kernel.groups * (shard if kernel.scattered_output else 1.0)
    r, fused = d.runtime, 2.0 * d.compiled
    recast = r.recast_bytes * inputs * kernel.trained
    backward = (r.cast_backward_bytes - fused) * gradients + recast
    return (r.cast_forward_bytes - fused) * inputs, backward
