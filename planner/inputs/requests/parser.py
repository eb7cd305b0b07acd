"""From the document a user writes to a PlanRequest: names looked up, shorthands written out.

The document is `{"model", "cluster", "training", "search", "plan", "profile", "site"}`; the parts
are described where they are parsed.  Everything wrong with it is collected and raised once, each
problem with its place in the user's own document.  Nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from cost_models.catalog import hardware
from cost_models.plans import FIELDS, ParallelPlan
from cost_models.profiles import profile as find_profile
from cost_models.spec import ClusterSpec, ModelSpec, NodeGroup, TrainingSpec
from planner import frameworks
from planner.constraints import Context
from planner.documents.limits import bounds, modules
from planner.documents.loading import plain
from planner.documents.problems import (
    MAX_PROBLEMS,
    Contradiction,
    Gathered,
    RequestError,
    join,
    missing,
    problem,
    refuse,
    unknown_field,
    unprintable,
    wrong_type,
)
from planner.documents.request import Bounds, PlanRequest, SearchSpec
from planner.documents.typed_values import (
    check_field,
    looked_up,
    plain_object,
    require_object,
    require_string,
    validate,
)
from planner.evidence.uncertainty import profiles
from planner.evidence.uncertainty import site_storage as sites
from planner.frameworks import plan_defaults
from planner.frameworks.devices import preferred, usual
from planner.frameworks.plan_defaults import usual_training
from planner.frameworks.supported import PEFT, tunes_on_one_node
from planner.inputs.requests.consistency import contradictions
from planner.inputs.requests.models import is_config, parse_model

T = TypeVar("T")

PARTS = (
    "model", "cluster", "training", "search", "plan", "profile", "site", "guessed", "defaulted",
)  # fmt: skip
_FLAT_FIELDS = frozenset(NodeGroup.model_fields) | {"preset"}
_MAX_GROUPS = 16  # of a ClusterSpec
_CLUSTER_FIELDS = frozenset(ClusterSpec.model_fields) - {"groups"}
_CATALOG_FIELDS = ("price_usd_per_accelerator_hour", "node_power_watts")
_SEARCH_FIELDS = tuple(name for name in SearchSpec.model_fields if name != "limits")


def parse_request(
    document: Any, *, need_plan: bool = False, mixed_cluster: bool = False
) -> PlanRequest:
    """The request that a user's document asks.

    need_plan: the question is about one plan, so the document must have one.  mixed_cluster: nodes
    may differ.
    Raises RequestError with every problem found; Contradiction where each part is fine alone.
    """
    return _Parser(plain_object(document)).request(need_plan, mixed_cluster)


def _half_precision(cluster: ClusterSpec) -> str:
    """The half precision that all accelerators compute in: bf16, or fp16 where one has no other."""
    parts = [group.accelerator for group in cluster.groups]
    lacks = any(part.peak_flop_per_s("bf16") is None for part in parts)
    has = all(part.peak_flop_per_s("fp16") is not None for part in parts)
    return "fp16" if lacks and has else "bf16"


def parse_cluster(value: Any) -> ClusterSpec:
    """A cluster: a preset's name, a shorthand, or an object as in a request.

    Raises RequestError; its pointers begin with /cluster.
    """
    parser = _Parser({})
    cluster = parser.cluster(plain(value, "/cluster"))
    parser.problems.check()
    return cluster


def _context(
    model: ModelSpec | None, cluster: ClusterSpec | None, training: TrainingSpec | None
) -> Context | None:
    """What rules are asked about; None where a part of it is wrong."""
    if model is None or cluster is None or training is None:
        return None
    return Context(model, cluster, training)


def _usual_where_missing(cluster: ClusterSpec, stated: Mapping[str, Any]) -> dict[str, Any]:
    """What plans usually have on a cluster, for the fields that are not given."""
    return {name: first for name, (first, *_) in usual(cluster).items() if stated.get(name) is None}


class _Parser:
    """Collects problems and the pointers of defaults while it turns the parts into specs."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.problems = Gathered()
        self.defaulted: list[str] = []
        self.guessed: tuple[str, ...] = ()

    def request(self, need_plan: bool, mixed_cluster: bool) -> PlanRequest:
        document = self.document
        self.refuse_unknown("", document, PARTS)
        required = ("model", "cluster", "training") + (("plan",) if need_plan else ())
        self.problems += [missing(name) for name in required if document.get(name) is None]
        model = self.part("model", self.model)
        cluster = self.part("cluster", self.cluster)
        search = self.part("search", self.search) or SearchSpec()
        training = self.part("training", lambda value: self.training(value, search, cluster))
        profile, site = self.part("profile", self.profile), self.part("site", self.site)
        context = _context(model, cluster, training)
        plan = self.part("plan", lambda value: self.plan(value, cluster, search, context))
        marks = {name: self.strings(name) for name in ("guessed", "defaulted")}
        kind = RequestError if self.problems else Contradiction
        if model is None or cluster is None or training is None:
            raise kind(self.problems)
        self.problems += contradictions(model, cluster, training, mixed_cluster)
        if site is not None and len(cluster.groups) > 1:
            detail = "a site corrects times on equal nodes only"
            self.problems.append(problem("/site", "mixed", detail))
        if self.problems:
            raise kind(self.problems)
        return PlanRequest(
            model=model,
            cluster=cluster,
            training=training,
            search=search,
            plan=plan,
            profile=profile,
            site=site,
            # A request that was answered carries its marks; asked again, it keeps them.
            guessed=marks["guessed"] or self.guessed,
            defaulted=marks["defaulted"] or tuple(self.defaulted),
        )

    def part(self, name: str, parse: Callable[[Any], T]) -> T | None:
        """One part of the document; None where it is absent or wrong."""
        value = self.document.get(name)
        return None if value is None else self.problems.of(lambda: parse(value))

    def model(self, value: Any) -> ModelSpec:
        spec, self.guessed = parse_model(value)
        if isinstance(value, dict) and not is_config(value):
            self.note_defaults("/model", value, ModelSpec.model_fields)
        return spec

    def cluster(self, value: Any) -> ClusterSpec:
        """A name, or an object: a preset or equal nodes with what differs, or mixed groups.

        A name is that of a preset, a shorthand such as 8x8xh100-sxm, or `local`.
        """
        if isinstance(value, str):
            named = looked_up("/cluster", lambda: hardware.cluster(value))
            self.note_defaults("/cluster", {}, _CLUSTER_FIELDS - {"name"})
            self.note_catalog("/cluster", {}, named.groups[0])
            return named
        require_object("/cluster", value, "a name, a shorthand or an object")
        fields = {name: item for name, item in value.items() if name in _CLUSTER_FIELDS}
        rest = {name: item for name, item in value.items() if name not in _CLUSTER_FIELDS}
        if "groups" in rest:
            self.refuse_unknown("/cluster", rest, ["groups"], *_CLUSTER_FIELDS)
            groups = _merged_groups(self.groups(rest["groups"]))
        else:
            self.refuse_unknown("/cluster", rest, _FLAT_FIELDS, *_CLUSTER_FIELDS)
            known = {name: item for name, item in rest.items() if name in _FLAT_FIELDS}
            group = self.preset(known) if "preset" in known else self.group("/cluster", known)
            groups = (group,)
        self.note_defaults("/cluster", value, _CLUSTER_FIELDS - {"name"})
        # The catalog's usual efficiency of the site and failure rate, unless given here.
        defaults = looked_up("/cluster", lambda: hardware.cluster_of("custom", *groups))
        return validate("/cluster", {**_fields(defaults), **fields}, ClusterSpec)

    def preset(self, value: dict[str, Any]) -> NodeGroup:
        """The nodes of a preset, with what is given beside its name laid over."""
        name, nodes = value["preset"], value.get("nodes")
        require_string("/cluster/preset", name, "a name")
        if nodes is not None:
            check_field("/cluster/nodes", NodeGroup, "nodes", nodes)
        defaults = looked_up("/cluster/preset", lambda: hardware.cluster(name, nodes)).groups[0]
        self.note_catalog("/cluster", value, defaults)
        stated = {name: item for name, item in value.items() if name not in ("preset", "nodes")}
        return _node_group("/cluster", {**_fields(defaults), **stated})

    def groups(self, value: Any) -> tuple[NodeGroup, ...]:
        if not isinstance(value, list):
            raise RequestError([wrong_type("/cluster/groups", "a list", value)])
        if not 1 <= len(value) <= _MAX_GROUPS:
            detail = f"must have 1 to {_MAX_GROUPS} groups, got {len(value)}"
            raise refuse("/cluster/groups", "length", detail)
        groups = []
        for i, item in enumerate(value):
            pointer = join("/cluster/groups", i)
            require_object(pointer, item, "an object")
            groups.append(self.group(pointer, item))
        return tuple(groups)

    def group(self, pointer: str, value: dict[str, Any]) -> NodeGroup:
        """Equal nodes: of a known accelerator, with what the catalog says unless given here."""
        names = ("accelerator", "nodes")
        Gathered(missing(name, pointer) for name in names if value.get(name) is None).check()
        accelerator = value["accelerator"]
        if not isinstance(accelerator, str):
            return _node_group(pointer, value)
        nodes, per_node = value["nodes"], value.get("accelerators_per_node")
        check_field(join(pointer, "nodes"), NodeGroup, "nodes", nodes)
        if per_node is not None:
            at = join(pointer, "accelerators_per_node")
            check_field(at, NodeGroup, "accelerators_per_node", per_node)
        looked_up(join(pointer, "accelerator"), lambda: hardware.accelerator(accelerator))
        defaults = looked_up(pointer, lambda: hardware.node_group(accelerator, nodes, per_node))
        self.note_defaults(pointer, value, ["accelerators_per_node", "network"])
        self.note_catalog(pointer, value, defaults)
        stated = {
            name: item
            for name, item in value.items()
            if name not in ("accelerator", "accelerators_per_node")
        }
        return _node_group(pointer, {**_fields(defaults), **stated})

    def training(self, value: Any, search: SearchSpec, cluster: ClusterSpec | None) -> TrainingSpec:
        """The fields of TrainingSpec; what is left out is as the framework asked for runs it.

        Adapters on one node are what most people start with PEFT: asked of no framework, they are
        PEFT's unless a plan is given.
        """
        require_object("/training", value, "an object")
        self.note_defaults("/training", value, TrainingSpec.model_fields)
        defaults: dict[str, Any] = {}
        framework, half = search.framework, "bf16"
        if cluster is not None:
            adapts = bool(value.get("lora_rank")) and self.document.get("plan") is None
            only = preferred(cluster) or (PEFT if tunes_on_one_node(cluster, adapts) else None)
            framework = framework or only
            # Nobody means bf16 on a V100.
            half = _half_precision(cluster)
            defaults["precision"] = half
        if framework is not None:
            precision, adapts = value.get("precision", half), bool(value.get("lora_rank"))
            frozen = str(value.get("frozen_dtype"))
            defaults |= usual_training(frameworks.get(framework), precision, adapts, frozen)
        return validate("/training", {**defaults, **value}, TrainingSpec)

    def search(self, value: Any) -> SearchSpec:
        """The fields of SearchSpec, and limits on plan fields beside them."""
        require_object("/search", value, "an object")
        self.refuse_unknown("/search", value, (*SearchSpec.model_fields, *FIELDS))
        nested = {} if value.get("limits") is None else value["limits"]
        require_object("/search/limits", nested, "an object")
        self.refuse_unknown("/search/limits", nested, FIELDS)
        limits: dict[str, Bounds] = {}
        for pointer, mapping in (("/search/limits", nested), ("/search", value)):
            for name in FIELDS:
                if mapping.get(name) is None:
                    continue
                at = join(pointer, name)
                limit = bounds(at, name, mapping[name])
                if limits.setdefault(name, limit) != limit:
                    raise refuse(at, "inconsistent", f"contradicts /search/limits/{name}")
        known = {name: value[name] for name in _SEARCH_FIELDS if value.get(name) is not None}
        if isinstance(called := known.get("framework"), str):
            known["framework"] = looked_up("/search/framework", lambda: frameworks.get(called)).name
        self.note_defaults("/search", known, _SEARCH_FIELDS)
        return validate("/search", known, SearchSpec).model_copy(update={"limits": limits})

    def plan(
        self, value: Any, cluster: ClusterSpec | None, search: SearchSpec, context: Context | None
    ) -> ParallelPlan:
        """The fields of ParallelPlan; what is left out is as the framework asked for has it.

        dp, and the schedule of virtual stages, follow from the others.
        """
        require_object("/plan", value, "an object")
        filled = dict(value)
        framework = frameworks.get(search.framework) if search.framework is not None else None
        if framework is not None and context is not None:
            filled |= plan_defaults.usual(framework, value, context.model)
        elif framework is None and cluster is not None:
            filled |= _usual_where_missing(cluster, filled)
        if filled.get("schedule") is None and plan_defaults.degree(filled.get("vpp", 1)) > 1:
            filled["schedule"] = "interleaved-1f1b"
        if filled.get("dp") is None and cluster is not None:
            degrees = [plan_defaults.degree(filled.get(name, 1)) for name in ("tp", "cp", "pp")]
            # Rounded down where they do not divide: then a rule says so, with the numbers.
            filled["dp"] = max(1, cluster.accelerators // (degrees[0] * degrees[1] * degrees[2]))
        self.note_defaults("/plan", value, ParallelPlan.model_fields)
        plan = validate("/plan", filled, ParallelPlan)
        if framework is not None and context is not None:
            left_out = {name for name in FIELDS if value.get(name) is None}
            plan = plan_defaults.runnable(framework, context, plan, left_out)
        ordered = modules("/plan/recompute_modules", plan.recompute_modules)
        return plan.model_copy(update={"recompute_modules": ordered})

    def profile(self, value: Any) -> str:
        """The id of an efficiency profile."""
        name = require_string("/profile", value)
        looked_up("/profile", lambda: profiles.find(name))
        return name

    def site(self, value: Any) -> str:
        """The name of a site."""
        name = require_string("/site", value)
        return looked_up("/site", lambda: sites.find(name)).name

    def strings(self, name: str) -> tuple[str, ...]:
        value = self.document.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.problems.append(wrong_type(join("", name), "a list of strings", value))
            return ()
        # They are shown as they are.
        self.problems += [
            unprintable(join(f"/{name}", i), item)
            for i, item in enumerate(value)
            if not item.isprintable()
        ]
        return tuple(value)

    def note_defaults(self, pointer: str, fields: Mapping[str, Any], names: Iterable[str]) -> None:
        # Names of our own, which need no escaping.
        self.defaulted += [f"{pointer}/{name}" for name in sorted(names) if name not in fields]

    def note_catalog(self, pointer: str, fields: Mapping[str, Any], defaults: NodeGroup) -> None:
        """Note what the catalog knows of a node and nobody gave."""
        filled = [name for name in _CATALOG_FIELDS if getattr(defaults, name) is not None]
        self.note_defaults(pointer, fields, filled)

    def refuse_unknown(
        self, pointer: str, value: Mapping[str, Any], known: Iterable[str], *more: str
    ) -> None:
        """Note the fields that are not known; `more` are elsewhere allowed, and may be meant."""
        allowed = set(known)
        names = sorted({*allowed, *more})
        unknown = [name for name in value if name not in allowed]
        self.problems += [
            # Looking for near names takes a while; nobody reads the hints of a long list.
            unknown_field(pointer, name, names if i < MAX_PROBLEMS else ())
            for i, name in enumerate(unknown)
        ]


def _merged_groups(groups: tuple[NodeGroup, ...]) -> tuple[NodeGroup, ...]:
    """Groups of equal nodes as one, in the place of the first."""
    merged: list[NodeGroup] = []
    for group in groups:
        for i, known in enumerate(merged):
            if known.model_copy(update={"nodes": group.nodes}) == group:
                merged[i] = known.model_copy(update={"nodes": known.nodes + group.nodes})
                break
        else:
            merged.append(group)
    return tuple(merged)


def _node_group(pointer: str, value: Mapping[str, Any]) -> NodeGroup:
    group = validate(pointer, value, NodeGroup)
    if profile := group.accelerator.efficiency_profile:
        at = join(pointer, "accelerator", "efficiency_profile")
        looked_up(at, lambda: find_profile(profile))
    return group


def _fields(spec: BaseModel) -> dict[str, Any]:
    """The fields of a spec, its parts as they are."""
    return {name: getattr(spec, name) for name in type(spec).model_fields}
