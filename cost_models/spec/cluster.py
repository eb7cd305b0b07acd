"""The hardware of a training run: accelerators, nodes and the tiers of their network."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cost_models.fields import BytesPerSecond, Count, FlopPerSecond, Name, Spec


class AcceleratorSpec(Spec):
    """What one rank sees: one GPU, one GCD, one NPU, one TPU chip.  Peaks are dense."""

    id: Name
    name: Name
    vendor: str = ""
    memory_bytes: Annotated[float, Field(ge=1e6, le=1e16)] = Field(
        description="what the driver reports, not the label"
    )
    memory_bytes_per_s: BytesPerSecond
    peak_bf16_flop_per_s: FlopPerSecond | None = None
    peak_fp16_flop_per_s: FlopPerSecond | None = None
    peak_fp8_flop_per_s: FlopPerSecond | None = None
    peak_fp4_flop_per_s: FlopPerSecond | None = None
    peak_fp32_flop_per_s: FlopPerSecond | None = Field(
        None, description="of matrix products in full fp32, as torch computes them by default"
    )
    tdp_watts: Annotated[float, Field(gt=0, le=1e6)] | None = None
    efficiency_profile: str = Field("", description="catalog id; empty: the documented fallback")
    large_gemm_fraction: Annotated[float, Field(gt=0, le=1.5)] | None = Field(
        None,
        description="of the peak in bf16 (else fp16) that large matrix products reach in a loop, "
        "where measured (above 1: the clock is above the rated one); null: as in the profile",
    )
    confidence: Literal["high", "medium", "low", "user"] = "user"

    def peak_flop_per_s(self, precision: str) -> float | None:
        """Dense matrix peak in FLOP/s, None where the part has no such unit."""
        value: float | None = getattr(self, f"peak_{precision}_flop_per_s")
        return value

    @property
    def before_ampere(self) -> bool:
        """Whether it is an NVIDIA GPU of compute capability below 8.0: Volta or Turing.

        These have no matrix units for bf16, and no kernels of FlashAttention 2 and later, cuDNN's
        fused attention included (flash-attn's README; TransformerEngine
        attention/dot_product_attention/utils.py, "Filter: Compute capability").
        """
        return self.vendor == "NVIDIA" and self.peak_bf16_flop_per_s is None

    @property
    def before_blackwell(self) -> bool:
        """Whether it is an NVIDIA GPU, or a part of no vendor that is named, without FP4 units.

        On these CUDA_DEVICE_MAX_CONNECTIONS decides whether collectives start before the kernels
        that are queued after them (Megatron-LM arguments.py, validate_args).
        """
        return self.vendor.lower() in ("", "nvidia") and self.peak_fp4_flop_per_s is None


class NetworkTier(Spec):
    """One level of the network, from the fastest domain outward."""

    name: Name
    domain_accelerators: Count | None = Field(
        None, description="accelerators inside one domain of this tier; None: the whole cluster"
    )
    bandwidth_bytes_per_s: BytesPerSecond = Field(description="per accelerator and direction")
    latency_s: Annotated[float, Field(ge=0, le=10)] = Field(description="of one message")
    collective_wait_s: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="that a step of a collective between domains takes beyond latency_s"
    )
    oversubscription: Annotated[float, Field(ge=1, le=10_000)] = 1.0
    topology: Literal["switch", "mesh", "torus-2d", "torus-3d", "rail"] = Field(
        "switch",
        description="mesh: direct links, a group of m sees (m-1)/(domain-1) of the bandwidth; "
        "torus: rings along each axis, a group of up to 4 lies along one, of up to 16 along two; "
        "rail: a switch for each place in a node, so that only groups over several places are "
        "oversubscribed",
    )


class NodeGroup(Spec):
    """Equal nodes.  A cluster is one group, or several when it is mixed."""

    accelerator: AcceleratorSpec
    nodes: Annotated[int, Field(ge=1, le=1_000_000)] = Field(description="equal nodes of the group")
    accelerators_per_node: Annotated[int, Field(ge=1, le=10_000)]
    network: tuple[NetworkTier, ...] = Field(min_length=1, max_length=6)
    host_memory_bytes: Annotated[float, Field(ge=1e6, le=1e16)] | None = Field(
        None, description="per node"
    )
    host_link_bytes_per_s: BytesPerSecond | None = Field(
        None, description="PCIe or C2C, per accelerator and direction"
    )
    nvme_bytes_per_s: BytesPerSecond | None = Field(None, description="per node")
    price_usd_per_accelerator_hour: Annotated[float, Field(ge=0, le=1e6)] | None = Field(
        None, description="for the cost of a training"
    )
    node_power_watts: Annotated[float, Field(gt=0, le=1e7)] | None = Field(
        None, description="typical draw of one node in training"
    )

    @model_validator(mode="after")
    def _tiers_nest(self) -> Self:
        sizes = [tier.domain_accelerators for tier in self.network]
        if any(size is None for size in sizes[:-1]):
            raise ValueError("only the outermost tier may leave domain_accelerators out")
        known = [size for size in sizes if size is not None]
        for inner, outer in pairwise(known):
            if outer <= inner or outer % inner:
                raise ValueError(f"a tier of {outer} is not made of whole domains of {inner}")
        return self

    @property
    def accelerators(self) -> int:
        return self.nodes * self.accelerators_per_node


class ClusterSpec(Spec):
    """Groups of nodes; several groups make a mixed cluster."""

    name: Name = "custom"
    groups: tuple[NodeGroup, ...] = Field(min_length=1, max_length=16)
    reserved_bytes_per_accelerator: Annotated[float, Field(ge=0, le=1e15)] | None = Field(
        None,
        description="instead of the computed fragmentation, CUDA context and NCCL buffers; "
        "None: computed",
    )
    pue: Annotated[float, Field(ge=1, le=10)] = Field(
        1.25, description="power usage effectiveness of the site"
    )
    failures_per_1000_node_days: Annotated[float, Field(ge=0, le=1e6)] | None = Field(
        None, description="None: no answer about lost time"
    )

    @property
    def before_ampere(self) -> bool:
        """Whether some of its accelerators have no FlashAttention 2."""
        return any(group.accelerator.before_ampere for group in self.groups)

    @property
    def accelerators(self) -> int:
        return sum(group.accelerators for group in self.groups)

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.accelerators > 1_000_000:
            raise ValueError(f"{self.accelerators} accelerators; at most 1000000")
        return self
