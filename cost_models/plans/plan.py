"""One plan as a document: its fields, their names and what goes together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from cost_models.effects import Condition, above, equal, read_where
from cost_models.fields import Spec
from cost_models.runtimes import RUNTIMES
from cost_models.schedules import SCHEDULES

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
CrossEntropy = Literal["unfused", "fused", "in_place", "chunked", "liger"]
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

# Where a field has an effect.
SPLIT_CONTEXT: Condition = {"cp": above(1)}
SPLIT_EXPERTS: Condition = {"ep": above(1)}
SHARDED: Condition = {"zero_stage": above(0)}
FULL_RECOMPUTE: Condition = {"recompute": equal("full")}

Degree = Annotated[int, Field(ge=1, le=1_000_000)]


class ParallelPlan(Spec):
    """How the work is split, stored and ordered: everything a launcher needs to be told."""

    tp: Degree = Field(1, description="tensor parallel")
    sequence_parallel: bool = Field(False, description="norms and dropout split over tp")
    cp: Degree = Field(1, description="context parallel")
    cp_kind: CPKind = Field(
        "p2p", **read_where("how context-parallel ranks exchange keys and values", SPLIT_CONTEXT)
    )
    dynamic_cp: bool = Field(
        False,
        **read_where(
            "each packed sample over as few of the dp x cp ranks as its length needs; cp ranks "
            "hold the longest",
            SPLIT_CONTEXT,
        ),
    )
    pp: Degree = Field(1, description="pipeline parallel: stages")
    vpp: Degree = Field(1, description="model chunks per pipeline rank")
    dp: Degree = Field(1, description="data parallel: accelerators / (tp cp pp)")
    dp_shard: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        0,
        **read_where(
            "ranks one ZeRO shard group spans (hybrid sharding); 0: all of dp x cp", SHARDED
        ),
    )
    ep: Degree = Field(1, description="expert parallel, inside tp x cp x dp")
    etp: Degree = Field(1, description="tensor parallel of the experts")
    zero_stage: Annotated[int, Field(ge=0, le=3)] = Field(
        1, description="0 replicated, 1 optimizer, 2 + gradients, 3 + weights sharded"
    )
    reshard_after_forward: bool = Field(
        True,
        **read_where("free gathered weights after the forward pass", {"zero_stage": above(2)}),
    )
    micro_batch_size: Degree = Field(1, description="sequences per micro-batch")
    recompute: Recompute = Field(
        "none", description="what is computed again in the backward pass instead of kept"
    )
    recompute_modules: tuple[RecomputeModule, ...] = Field(
        (), **read_where("what is recomputed", {"recompute": equal("selective")})
    )
    recompute_method: RecomputeMethod = Field(
        "block",
        **read_where(
            "block: the first layers; uniform: checkpoints of several layers", FULL_RECOMPUTE
        ),
    )
    recompute_num_layers: Annotated[int, Field(ge=0, le=10_000)] = Field(
        0,
        **read_where("layers per model chunk (block), or per checkpoint (uniform)", FULL_RECOMPUTE),
    )
    recompute_layers: tuple[Annotated[int, Field(ge=0, le=10_000)], ...] = Field(
        (),
        max_length=4096,
        **read_where(
            "by block: layers per virtual stage in forward order, where they differ; "
            "recompute_num_layers is the most of them",
            FULL_RECOMPUTE,
        ),
    )
    schedule: Schedule = Field(
        "1f1b", description="in which order ranks run the micro-batches' forwards and backwards"
    )
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
    rank_order: RankOrder = Field(
        "tp-cp-ep-dp-pp",
        **read_where("from neighbouring ranks to distant ones", {"pp": above(1)}),
    )
    offload_optimizer: bool = Field(False, description="optimizer states in host memory")
    offload_activations: bool = Field(False, description="activations in host memory")
    offload_num_layers: Annotated[int, Field(ge=0, le=10_000)] = Field(
        0,
        **read_where(
            "layers of each stage whose activations are offloaded; 0: all of them",
            {"offload_activations": equal(True)},
        ),
    )
    attention_kernel: AttentionKernel = Field(
        "flash", description="flash: the newest FlashAttention of the accelerator"
    )
    cross_entropy: CrossEntropy = Field(
        "fused",
        description="how the loss is computed from the logits; chunked: with the output layer, "
        "some tokens at a time, so that most logits never exist; liger: so by Liger's kernels, as "
        "norms, rotations and gated activations are then",
    )
    moe_dispatcher: MoEDispatcher = Field(
        "alltoall", **read_where("how tokens reach their experts", SPLIT_EXPERTS)
    )
    overlap_grad_reduce: bool = Field(True, description="gradient reduction under backward")
    overlap_param_gather: bool = Field(
        True, **read_where("weight gathering under forward", SHARDED)
    )
    overlap_tp: bool = Field(
        False, **read_where("tensor-parallel collectives under GEMMs", {"tp": above(1)})
    )
    overlap_p2p: bool = Field(
        True, **read_where("pipeline messages under the next chunk", {"vpp": above(1)})
    )
    overlap_ep: bool = Field(
        False,
        **read_where(
            "expert-parallel communication under the kernels of another micro-batch", SPLIT_EXPERTS
        ),
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

    def _recompute_fields(self) -> None:
        if self.recompute == "selective" and not self.recompute_modules:
            raise ValueError("selective recompute needs recompute_modules")
        if self.recompute != "selective" and self.recompute_modules:
            raise ValueError("recompute_modules belong to selective recompute")
        if self.recompute == "full" and self.recompute_num_layers < 1:
            raise ValueError("full recompute needs recompute_num_layers >= 1")
        if self.recompute != "full" and self.recompute_num_layers:
            raise ValueError("recompute_num_layers belong to full recompute")

    def _layers_of_stages(self) -> None:
        two_way = SCHEDULES[self.schedule].placement == "two-way"
        counts = {self.pp, self.pp if two_way else self.pp * self.vpp}
        if len(self.stage_layers) not in counts:
            allowed = " or ".join(str(count) for count in sorted(counts))
            raise ValueError(f"stage_layers names {len(self.stage_layers)} of {allowed} stages")
        if self.first_stage_layers or self.last_stage_layers:
            raise ValueError("give stage_layers, or first_stage_layers and last_stage_layers")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self._recompute_fields()
        if self.offload_num_layers and not self.offload_activations:
            raise ValueError("offload_num_layers belong to offload_activations")
        if self.recompute_layers:
            self._some_layers()
        if self.stage_layers:
            self._layers_of_stages()
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

    def micro_batches(self, global_batch_size: int) -> int:
        """Micro-batches of a step on each pipeline."""
        return global_batch_size // (self.dp * self.micro_batch_size)

    @property
    def recompute_module_bits(self) -> int:
        return sum(1 << RECOMPUTE_MODULES.index(m) for m in self.recompute_modules)
