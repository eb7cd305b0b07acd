"""What a user asks, resolved: the one object every question of the product starts from."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from cost_models.fields import Spec
from cost_models.plans import FIELDS, VOCABULARIES, ParallelPlan
from cost_models.spec import ClusterSpec, ModelSpec, TrainingSpec

Objective = Literal["tokens_per_s", "memory_headroom", "cost"]
Value = int | bool | str | tuple[str, ...] | tuple[int, ...]
# Fields whose default may be widened by `search.open`, and the values that opens.
OPENED: dict[str, tuple[Value, ...]] = {
    "offload_optimizer": (False, True),
    "offload_activations": (False, True),
    "rank_order": VOCABULARIES["rank_order"],
    "cp_kind": VOCABULARIES["cp_kind"],
    "dynamic_cp": (False, True),
    "overlap_tp": (False, True),
    "overlap_ep": (False, True),
    "moe_dispatcher": VOCABULARIES["moe_dispatcher"],
}


class Bounds(Spec):
    """Limits on one plan field: a closed range, or the values allowed."""

    min: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    max: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    values: tuple[Value, ...] | None = Field(None, min_length=1, max_length=256)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.values is not None and (self.min is not None or self.max is not None):
            raise ValueError("give values, or min and max, not both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


def _share(value: Any) -> Any:
    """5% is 0.05."""
    if not isinstance(value, str) or not value.strip().endswith("%"):
        return value
    try:
        return float(value.strip().removesuffix("%")) / 100.0
    except ValueError:
        return value


class SearchSpec(Spec):
    """What the search may vary and what it looks for."""

    objective: Objective = Field("tokens_per_s", description="what the best plan maximises")
    top_k: Annotated[int, Field(ge=1, le=1000)] = Field(5, description="plans to list")
    memory_risk: Annotated[float, BeforeValidator(_share), Field(ge=0.001, le=1.0)] = Field(
        0.05, description="largest risk of running out of memory, such as 5%; 100%: the peak fits"
    )
    framework: str | None = Field(None, description="search only what this framework accepts")
    limits: dict[str, Bounds] = Field(
        default_factory=dict, description="by plan field; `tp: 8` is short for values [8]"
    )
    open: tuple[
        Literal[
            "offload_optimizer",
            "offload_activations",
            "rank_order",
            "cp_kind",
            "dynamic_cp",
            "recompute_layers",
            "overlap_tp",
            "overlap_ep",
            "moe_dispatcher",
        ],
        ...,
    ] = Field((), description="plan fields to search that are held fixed by default")

    @model_validator(mode="after")
    def _known_fields(self) -> Self:
        for name in self.limits:
            if name not in FIELDS:
                raise ValueError(f"{name} is not a plan field")
        if "recompute_layers" in self.limits:
            raise ValueError("recompute_layers follow from each stage's memory: open them instead")
        return self


class PlanRequest(Spec):
    """Model, cluster and batch; what the search may do; and, for one plan, that plan."""

    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    search: SearchSpec = SearchSpec()
    plan: ParallelPlan | None = None
    profile: str | None = Field(
        None, description="efficiency profile by its id; None: that of the accelerator"
    )
    site: str | None = Field(
        None,
        description="site whose learned runs correct the times, or NAME@RUN: as it was before that "
        "run; None: no correction",
    )
    guessed: tuple[str, ...] = Field((), description="model fields that the config does not state")
    defaulted: tuple[str, ...] = Field((), description="JSON pointers of values set by default")

    @property
    def named_plan(self) -> ParallelPlan:
        """The plan, of a request that was read as one about a plan."""
        assert self.plan is not None
        return self.plan

    @property
    def training_left_out(self) -> frozenset[str]:
        """The training fields that nobody gave."""
        head = "/training/"
        named = (one for one in self.defaulted if one.startswith(head))
        return frozenset(one.removeprefix(head) for one in named)

    def for_framework(self, name: str | None) -> Self:
        """The request bound to what a framework can run; None: to none."""
        search = self.search.model_copy(update={"framework": name})
        return self.model_copy(update={"search": search})

    def document(self) -> dict[str, Any]:
        """This request as plain data that can be asked again, with every default written out."""
        return self.model_dump(mode="json", exclude_none=True)
