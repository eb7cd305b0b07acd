"""torchtitan launches read back: the registry module, and what the command line overrides.

The module is Python and is never imported: python.py follows it, tree.py reads the model.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from cost_models.plans import ParallelPlan
from cost_models.schedules import SCHEDULES as OURS
from cost_models.spec import ModelSpec, TrainingSpec
from cost_models.stages import stage_layers, virtual_stages
from planner.answer import Reason
from planner.frameworks import scripts
from planner.frameworks.bash import Argument, Launch
from planner.frameworks.reading import Reading, Refusal, Setting, Unreadable
from planner.frameworks.torch_schedules import SCHEDULES
from planner.frameworks.torchtitan import registry
from planner.frameworks.torchtitan.python import Call, Program, Unknown, Value
from planner.frameworks.torchtitan.rules import ATTENTION, DISPATCHERS
from planner.frameworks.torchtitan.tree import Architecture, Tree

TITLE = "torchtitan"
PROGRAM = "torchtitan.train"
_OURS_OF = {theirs.lower(): ours for ours, theirs in SCHEDULES.items()}
_KERNELS = {theirs: ours for ours, theirs in ATTENTION.items()}
_DISPATCHERS = {theirs: ours for ours, theirs in DISPATCHERS.items()}
MAX_DEGREE = 1_000_000
MAX_PARTS = 4096
_SINGLE = ("1f1b", "gpipe")
# Objects of Trainer.Config that hold nothing of a plan.
_OTHERS = frozenset(
    {*registry.SECTIONS, "model_spec", "hf_assets_path", "dump_folder"}
    - {"training", "parallelism", "compile"}
)


def _trains(launch: Launch) -> bool:
    name = launch.program.text
    return name == PROGRAM or name.endswith("torchtitan/train.py")


def _modules(files: Mapping[str, str]) -> list[str]:
    """Files that return a Trainer.Config of torchtitan."""
    return [
        name
        for name, text in files.items()
        if name.endswith(".py") and "torchtitan" in text and "import" in text
    ]


def recognises(files: Mapping[str, str]) -> bool:
    """Whether a script runs torchtitan.train, or a Python file builds on its configs."""
    try:
        scripts.training_call(files, _trains, TITLE)
    except Unreadable:
        return bool(_modules(files)) and not scripts.scripts(files)
    return True


@dataclass
class _Told:
    """What the files say of a Trainer.Config, with where; and what was asked of it."""

    config: Call
    file: str
    settings: list[Setting] = field(default_factory=list)
    unknown: list[Setting] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    def refuse(self, text: str, name: str = "", code: str = "framework_unsupported") -> None:
        setting = next((one for one in reversed(self.settings) if one.name == name), None)
        self.refusals.append(Refusal(reason=Reason(code=code, text=text), setting=setting))

    def assume(self, text: str) -> None:
        if text not in self.assumed:
            self.assumed.append(text)

    def get(self, path: str) -> Any:
        """A field of a section, its default where it is not set.

        Raises Unreadable where its value is not known or of another type.
        """
        self.asked.add(path)
        section, name = path.split(".")
        default = registry.document()["fields"][section][name]
        owner = self.config.kwargs.get(section)
        value = owner.kwargs.get(name, default) if isinstance(owner, Call) else default
        line = owner.lines.get(name, owner.line) if isinstance(owner, Call) else 0
        if isinstance(value, Unknown | Call):
            shown = value.source if isinstance(value, Unknown) else value.name
            raise Unreadable(
                f"{path} is `{shown}`, which the files do not say: write the value out",
                self.file,
                line,
            )
        whole = isinstance(default, int) and not isinstance(default, bool)
        if whole and (not isinstance(value, int) or isinstance(value, bool)):
            raise Unreadable(f"{path} must be an integer, got {value!r}", self.file, line)
        if isinstance(default, bool) and not isinstance(value, bool):
            raise Unreadable(f"{path} must be True or False, got {value!r}", self.file, line)
        return value

    def degree(self, name: str) -> int:
        """A parallel degree; anything below 1 is refused and 1 taken."""
        value = int(self.get(f"parallelism.{name}"))
        if not 1 <= value <= MAX_DEGREE:
            needed = "at least 1" if value < 1 else f"at most {MAX_DEGREE}"
            self.refuse(f"{name} is {value}; {needed} is needed", f"parallelism.{name}")
            return 1
        return value


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """What the launch says.

    Raises Unreadable where there is no registry module, or it leaves out what a model needs.
    """
    words: tuple[Argument, ...] = ()
    nodes = per_node = None
    size = accelerators
    notes: tuple[str, ...] = ()
    launcher: tuple[Setting, ...] = ()
    if scripts.scripts(files):
        found = scripts.training_call(files, _trains, TITLE)
        reached = scripts.world(found.launch)
        nodes, per_node, words = reached.nodes, reached.per_node, found.launch.arguments
        size = scripts.accelerators(found, reached, accelerators)
        notes, launcher = found.notes, scripts.options(found.launch.before)
    module, function, rest = _named(words)
    told = _config(files, module, function)
    for note in notes:
        told.assume(note)
    _gather(told)
    _overrides(told, rest)
    if size is None:
        raise Unreadable(
            "the files do not say how many accelerators run it: give a cluster", told.file
        )
    try:
        architecture = _architecture(told)
        model = ModelSpec(**architecture.model)
        plan, training = _plan(told, architecture, model, size)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        text = f"{where}: {first['msg']}" if where else first["msg"]
        raise Unreadable(text, told.file) from None
    return Reading(
        framework="torchtitan",
        model=model,
        training=training,
        plan=plan,
        nodes=nodes,
        accelerators_per_node=per_node,
        settings=(*launcher, *told.settings),
        unknown=tuple(told.unknown),
        unread=tuple(
            one for one in told.settings if one.name not in told.asked and one not in told.unknown
        ),
        assumed=tuple(told.assumed),
        refusals=tuple(told.refusals),
    )


# The module and the command line.


def _named(words: Sequence[Argument]) -> tuple[str, str, list[Argument]]:
    """(--module, --config, the other words)."""
    given = {"--module": "", "--config": ""}
    rest: list[Argument] = []
    wanted = ""
    for word in words:
        name, equals, value = word.text.partition("=")
        if wanted:
            given[wanted], wanted = word.text, ""
        elif name in given and equals:
            given[name] = value
        elif word.text in given:
            wanted = word.text
        else:
            rest.append(word)
    return given["--module"], given["--config"], rest


def _config(files: Mapping[str, str], module: str, function: str) -> _Told:
    """The Trainer.Config that the named function returns."""
    base = module.rsplit(".", 1)[-1]
    short = module.removeprefix("torchtitan.models.")
    stored = registry.document()["configs"].get(short.removesuffix(".config_registry"))
    place = module.replace(".", "/")
    candidates = (f"{place}.py", f"{base}.py", f"{place}/config_registry.py")
    names = [name for name in candidates if name in files] if module else _modules(files)
    if not names and stored is not None:
        if function not in stored:
            known = ", ".join(stored)
            raise Unreadable(f"module {module} has no config {function!r} (it has {known})")
        package = short.removesuffix(".config_registry")
        return _Told(registry.config(package, stored[function], 0), f"{package}.{function}")
    if not names:
        shown = ", ".join(files) or "none"
        if any(name.endswith(".toml") for name in files):
            raise Unreadable(
                "TOML configures torchtitan up to 0.2.2, which is not read; a registry module of "
                f"0.3.0 is (files: {shown})"
            )
        raise Unreadable(
            f"no file holds the registry module {module or 'of a Trainer.Config'} (files: {shown})"
        )
    file = names[0]
    program = Program(files[file], file, registry.library, registry.missing)
    if not function:
        chosen = [n for n in program.functions if n == "config"] or _returning(program)
        if len(chosen) != 1:
            known = ", ".join(chosen) or "none"
            raise Unreadable(f"which function is the config? ({known}); give --config", file)
        function = chosen[0]
    made = program.call(function)
    if not isinstance(made, Call) or made.short != "Trainer.Config":
        line = program.functions[function].lineno
        shown = made.name if isinstance(made, Call) else getattr(made, "source", repr(made))
        raise Unreadable(f"{function}() returns {shown}, no Trainer.Config", file, line)
    told = _Told(made, file)
    for note in program.notes:
        told.assume(note)
    return told


def _returning(program: Program) -> list[str]:
    """Functions without arguments that speak of a Trainer.Config."""
    return [
        name
        for name, node in program.functions.items()
        if not node.args.args
        and node.returns is not None
        and ast.unparse(node.returns).endswith("Trainer.Config")
    ]


def _shown(value: Value) -> str:
    if isinstance(value, Call):
        return f"{value.short}(...)"
    return value.source if isinstance(value, Unknown) else str(value)


def _gather(told: _Told) -> None:
    """Every setting of the config, and those that it does not have."""
    for section, owner in told.config.kwargs.items():
        line = told.config.lines.get(section, told.config.line)
        fields = registry.document()["fields"].get(section)
        known = section in _OTHERS or fields is not None
        if not known:
            _unknown(told, section, _shown(owner), line)
        elif fields is None or not isinstance(owner, Call):
            setting = Setting(name=section, value=_shown(owner), file=told.file, line=line)
            told.settings.append(setting)
        else:
            for name, value in owner.kwargs.items():
                place = owner.lines.get(name, owner.line)
                path = f"{section}.{name}"
                if name not in fields:
                    _unknown(told, path, _shown(value), place)
                    continue
                setting = Setting(name=path, value=_shown(value), file=told.file, line=place)
                told.settings.append(setting)


def _unknown(told: _Told, name: str, value: str, line: int, file: str = "") -> None:
    setting = Setting(name=name, value=value, file=file or told.file, line=line)
    told.settings.append(setting)
    told.unknown.append(setting)
    told.refuse(f"torchtitan 0.3.0 has no {name}", name)


def _typed(default: Any, text: str) -> Value:
    """The value of an option in the type of its field."""
    if isinstance(default, bool):
        known = {"true": True, "false": False}
        if text.lower() not in known:
            raise ValueError("True or False is needed")
        return known[text.lower()]
    if isinstance(default, int) or (default is None and re.fullmatch(r"-?\d{1,18}", text)):
        return int(text)
    if isinstance(default, float):
        return float(text)
    if isinstance(default, list):
        return text.split(",")
    return None if text == "None" else text


def _overrides(told: _Told, words: Sequence[Argument]) -> None:
    """Options of the command line, which win over the module."""
    checkpoints = {"full": "FullAC", "selective": "SelectiveAC", "memory-budget": "MemoryBudgetAC"}
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        text, equals, value = word.text.partition("=")
        if text.startswith("activation-checkpoint:"):
            kind = text.partition(":")[2]
            made = None if kind == "none" else Call(f"{checkpoints.get(kind, kind)}.Config", 0)
            told.config.set("activation_checkpoint", made, word.line)
            told.settings.append(
                Setting(name="activation_checkpoint", value=kind, file=word.file, line=word.line)
            )
            continue
        if not text.startswith("--"):
            if word.known:
                told.refuse(f"{text!r} belongs to no option: unrecognized arguments")
            else:
                told.assume(f"{word.file}:{word.line}: {text} is taken to hold no options")
            continue
        path = text.removeprefix("--").replace("-", "_")
        section, _, name = path.partition(".")
        fields = registry.document()["fields"].get(section)
        negated = fields is not None and name not in fields and name.startswith("no_")
        name = name.removeprefix("no_") if negated else name
        path = f"{section}.{name}" if name else section
        default = fields.get(name) if fields is not None else None
        switch = isinstance(default, bool)
        follows = place < len(words) and not words[place].text.startswith("--")
        if not equals and follows and not (switch and not _flag(words[place].text)):
            value, equals = words[place].text, "="
            if not words[place].known:
                raise Unreadable(
                    f"{text} is {value}, which the files do not say", word.file, word.line
                )
            place += 1
        if section not in _OTHERS and (fields is None or name not in fields):
            _unknown(told, text, value, word.line, word.file)
            continue
        shown = value if equals else str(not negated)
        told.settings.append(Setting(name=path, value=shown, file=word.file, line=word.line))
        if fields is None:
            continue
        try:
            typed = _typed(default, shown)
        except ValueError as error:
            told.refuse(f"{text} cannot be {shown!r}: {error}", path)
            continue
        owner = told.config.kwargs.get(section)
        if not isinstance(owner, Call):
            owner = Call(registry.SECTIONS[section], word.line)
            told.config.set(section, owner, word.line)
        owner.set(name, typed, word.line)


def _flag(text: str) -> bool:
    return text.lower() in ("true", "false")


# The model.


def _architecture(told: _Told) -> Architecture:
    tree = Tree(told.file)
    told.asked |= {"model_spec", "activation_checkpoint", "loss", "optimizer"}
    spec = told.config.kwargs.get("model_spec")
    if isinstance(spec, Call) and spec.short == "ModelSpec":
        found = tree.architecture(spec.kwargs.get("model"))
    elif isinstance(spec, Call) and spec.short == "model_registry":
        found = _flavor(tree, spec)
    else:
        shown = _shown(spec)
        raise Unreadable(
            f"model_spec is `{shown}`, which the files do not say: ModelSpec(...) or "
            "model_registry(...) is read",
            told.file,
            told.config.lines.get("model_spec", told.config.line),
        )
    for note in found.assumed:
        told.assume(note)
    return found


def _flavor(tree: Tree, call: Call) -> Architecture:
    """A flavor of torchtitan's own, from the stored table."""
    models = registry.document()["models"]
    package = next((part for part in call.name.split(".") if part in models), "")
    if not package:
        raise tree.wrong(
            f"{call.name} is none of {', '.join(models)} of torchtitan.models", call.line
        )
    flavor = call.args[0] if call.args else call.kwargs.get("flavor")
    row = models[package]
    if flavor not in row["flavors"]:
        known = ", ".join(row["flavors"])
        raise tree.wrong(f"{package} has no flavor {_shown(flavor)} (it has {known})", call.line)
    model = dict(row["flavors"][flavor])
    model["mtp_num_layers"] = tree.number(call, "num_mtp_layers", 0)
    converters = call.kwargs.get("converters") or []
    return Architecture(
        package,
        {**model, "name": f"{package} {flavor}"},
        attention=str(tree.get(call, "attn_backend", row["attn_backend"])),
        dispatcher=str(tree.get(call, "moe_comm_backend", row.get("moe_comm_backend", "standard"))),
        converters=[one for one in converters if isinstance(one, Call)],
    )


# The plan.


def _plan(
    told: _Told, architecture: Architecture, model: ModelSpec, world: int
) -> tuple[ParallelPlan, TrainingSpec]:
    tp, cp = told.degree("tensor_parallel_degree"), told.degree("context_parallel_degree")
    pp, ep = told.degree("pipeline_parallel_degree"), told.degree("expert_parallel_degree")
    replicate = told.degree("data_parallel_replicate_degree")
    shard = int(told.get("parallelism.data_parallel_shard_degree"))
    if shard == -1:
        shard = max(world // (replicate * cp * tp * pp), 1)
    elif shard < 1:
        told.refuse(
            f"data_parallel_shard_degree is {shard}; -1 or at least 1 is needed",
            "parallelism.data_parallel_shard_degree",
        )
        shard = 1
    if replicate * shard * cp * tp * pp != world:
        told.refuse(
            f"dp_replicate {replicate} x dp_shard {shard} x cp {cp} x tp {tp} x pp {pp} is not the "
            f"{world} accelerators",
            "parallelism.data_parallel_shard_degree",
            "world_size",
        )
    dp, sharded = replicate * shard, shard * cp > 1
    experts = model.moe is not None
    if not experts and ep > 1:
        told.assume(f"expert_parallel_degree {ep} has no effect without experts")
        ep = 1
    micro, batch = _batch(told, dp, pp)
    schedule, vpp, split = _pipeline(told, model, pp)
    compiled = bool(told.get("compile.enable"))
    components = told.get("compile.components") if compiled else []
    asynchronous = bool(told.get("compile.enable_async_tensor_parallel"))
    if asynchronous and "model" not in components:
        told.refuse(
            "asynchronous tensor parallelism needs compile.enable and 'model' in its components",
            "compile.enable_async_tensor_parallel",
        )
        asynchronous = False
    _graphs(told, architecture, pp, ep)
    sequence = bool(told.get("parallelism.enable_sequence_parallel")) and tp > 1
    plan = ParallelPlan(
        stack="torch",
        tp=tp,
        sequence_parallel=sequence,
        cp=cp,
        cp_kind="all_gather",
        pp=pp,
        vpp=vpp,
        dp=dp,
        dp_shard=shard * cp if sharded and replicate > 1 else 0,
        ep=ep,
        etp=tp if experts and ep == 1 else 1,
        zero_stage=3 if sharded else 0,
        reshard_after_forward=_reshards(told, pp) if sharded else True,
        micro_batch_size=micro,
        schedule=schedule,
        offload_optimizer=bool(told.get("training.enable_cpu_offload")),
        attention_kernel=_kernel(told, architecture),
        cross_entropy="fused" if "loss" in components else "unfused",
        moe_dispatcher=_dispatcher(told, architecture) if experts else "alltoall",
        overlap_grad_reduce=pp == 1,
        overlap_tp=asynchronous and tp > 1,
        compile="model" in components,
        **_checkpoints(told),
        **split,
    )
    return plan, _training(told, architecture, batch, pp)


def _batch(told: _Told, dp: int, pp: int) -> tuple[int, int]:
    """(micro-batch, global batch)."""
    local = int(told.get("training.local_batch_size"))
    micro = int(told.get("parallelism.pipeline_parallel_microbatch_size"))
    batch = int(told.get("training.global_batch_size"))
    if local < 1:
        told.refuse(f"local_batch_size is {local}", "training.local_batch_size")
        local = 1
    if micro < 1:
        name = "parallelism.pipeline_parallel_microbatch_size"
        told.refuse("pipeline_parallel_microbatch_size must be greater than 0", name)
        micro = 1
    if batch < 0:
        batch = local * dp
    if batch < 1 or batch % (local * dp):
        told.refuse(
            f"global batch {batch} is not a multiple of local batch {local} x dp {dp}",
            "training.global_batch_size",
            "batch_identity",
        )
        batch = local * dp
    if pp == 1:
        return local, batch
    if local % micro:
        told.refuse(
            f"local batch {local} is not a multiple of pipeline micro-batches of {micro}",
            "training.local_batch_size",
            "batch_identity",
        )
        micro = 1
    if batch > local * dp:
        told.assume(f"{batch // (local * dp)} passes of the pipeline per step are costed as one")
    return micro, batch


def _reshards(told: _Told, pp: int) -> bool:
    policy = told.get("parallelism.fsdp_reshard_after_forward")
    if policy not in ("default", "always", "never"):
        told.refuse(f"fsdp_reshard_after_forward cannot be {policy!r}")
    if policy == "always" and pp == 1:
        told.assume("the head is gathered again for the backward pass, which is not costed")
    return bool(policy == "always" or (policy == "default" and pp == 1))


def _graphs(told: _Told, architecture: Architecture, pp: int, ep: int) -> None:
    """CUDA graphs, which are on by default and go with little."""
    name = "training.disable_cuda_graphs"
    if told.get(name):
        return
    if pp > 1:
        told.refuse("CUDA graphs do not support pipelines: set disable_cuda_graphs", name)
    elif ep > 1 and architecture.dispatcher in _DISPATCHERS:
        told.refuse(
            f"CUDA graphs do not support experts' {architecture.dispatcher} dispatcher: set "
            "disable_cuda_graphs",
            name,
        )
    else:
        told.assume("CUDA graphs are not costed: kernels are taken as launched one by one")


def _kernel(told: _Told, architecture: Architecture) -> Any:
    name = architecture.attention
    if name not in _KERNELS:
        told.assume(f"attention {name} is costed as flash-attention")
    return _KERNELS.get(name, "flash")


def _dispatcher(told: _Told, architecture: Architecture) -> Any:
    name = architecture.dispatcher
    if name not in _DISPATCHERS:
        told.assume(f"the {name} dispatcher is costed as DeepEP")
    return _DISPATCHERS.get(name, "deepep")


def _checkpoints(told: _Told) -> dict[str, Any]:
    """The recompute fields."""
    found = told.config.kwargs.get("activation_checkpoint", Call("SelectiveAC.Config", 0))
    selective = {"recompute": "selective", "recompute_modules": ("op",)}
    if found is None:
        return {"recompute_method": "uniform"}
    name = found.short if isinstance(found, Call) else ""
    if name == "FullAC.Config":
        return {"recompute": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    if name != "SelectiveAC.Config":
        told.assume(f"activation_checkpoint {_shown(found)} is costed as SelectiveAC")
    return selective


def _training(told: _Told, architecture: Architecture, batch: int, pp: int) -> TrainingSpec:
    stored = told.get("training.dtype")
    master = "none" if stored == "bfloat16" else "fp32"
    optimizer = told.config.kwargs.get("optimizer")
    kind = optimizer.kwargs.get("implementation") if isinstance(optimizer, Call) else None
    narrow = master == "none" or kind == "fused_opt_states_bf16"
    if told.get("training.mixed_precision_param") != "bfloat16":
        told.assume("computation in float32 is costed as bf16")
    told.get("training.mixed_precision_reduce")
    loss = told.config.kwargs.get("loss")
    if isinstance(loss, Call) and loss.short == "ChunkedLossWrapper.Config":
        told.assume("the loss works in chunks of the sequence: less memory than is costed")
    if told.get("parallelism.spmd_backend") == "spmd_types":
        told.assume("spmd_backend spmd_types, the default, needs a torch newer than 2.13")
    balancer = told.get("parallelism.context_parallel_load_balancer")
    if balancer != "headtail":
        told.assume(f"context parallelism balanced by {balancer} is costed as by head and tail")
    return TrainingSpec(
        seq_length=told.get("training.seq_len"),
        global_batch_size=batch,
        master_weights_dtype=master,
        optimizer_state_dtype="bf16" if narrow else "fp32",
        gradient_dtype="fp32" if master == "fp32" or pp > 1 else "bf16",
        **_precision(told, architecture),
    )


def _precision(told: _Told, architecture: Architecture) -> dict[str, Any]:
    names = {one.short.removesuffix(".Config") for one in architecture.converters}
    if "NVFP4LinearConverter" in names:
        return {"precision": "fp4"}
    if "MXFP8LinearConverter" in names:
        return {"precision": "fp8", "fp8_recipe": "mxfp8"}
    if "Float8LinearConverter" in names:
        return {"precision": "fp8", "fp8_recipe": "rowwise"}
    for name in sorted(names):
        told.assume(f"converter {name} is not costed")
    return {}


# The pipeline.


def _pipeline(told: _Told, model: ModelSpec, pp: int) -> tuple[Any, int, dict[str, Any]]:
    """(schedule, chunks per stage, the fields that say how layers are split)."""
    if pp == 1:
        return "1f1b", 1, {}
    name = str(told.get("parallelism.pipeline_parallel_schedule"))
    if told.get("parallelism.pipeline_parallel_schedule_csv"):
        told.assume(f"the schedule of one's own (csv) is costed as {name}")
    schedule = _OURS_OF.get(name.lower())
    if schedule is None:
        known = ", ".join(SCHEDULES.values())
        told.refuse(
            f"torch has no schedule {name!r}; it has {known}",
            "parallelism.pipeline_parallel_schedule",
        )
        schedule = "1f1b"
    sizes = _sizes(told, model, pp, schedule)
    if not sizes:
        return schedule, _chunks(schedule), {}
    if len(sizes) % pp:
        told.refuse(f"{len(sizes)} model parts do not divide over pp {pp}", _PARTS, "vpp_layout")
        return schedule, _chunks(schedule), {}
    vpp = len(sizes) // pp
    counts = OURS[schedule].chunk_counts
    if vpp not in counts if counts else vpp < 2:
        wanted = " or ".join(map(str, counts)) or "2 or more"
        told.refuse(
            f"{SCHEDULES[schedule]} has {wanted} parts per stage, not {vpp}", _PARTS, "vpp_layout"
        )
        return schedule, _chunks(schedule), {}
    return schedule, vpp, _split(told, model, pp, vpp, schedule, sizes)


_PARTS = "parallelism.module_fqns_per_model_part"


def _chunks(schedule: str) -> int:
    return 1 if schedule in _SINGLE else 2


def _sizes(told: _Told, model: ModelSpec, pp: int, schedule: str) -> list[int]:
    """Layers of every model part, as given or as torchtitan would deal them out."""
    parts = told.get(_PARTS)
    first = int(told.get("parallelism.pipeline_parallel_first_stage_less_layers"))
    last = int(told.get("parallelism.pipeline_parallel_last_stage_less_layers"))
    per_stage = told.get("parallelism.pipeline_parallel_layers_per_stage")
    if parts is not None:
        return _given(told, parts, model)
    total = model.num_layers + first + last
    count = pp * _chunks(schedule)
    if isinstance(per_stage, int) and per_stage > 0:
        count = -(-total // per_stage)
    if not pp <= count <= MAX_PARTS or min(first, last) < 0 or max(first, last) > total // count:
        told.refuse(
            f"{model.num_layers} layers, {first} less at the start and {last} at the end, do not "
            f"make {count} model parts",
            "parallelism.pipeline_parallel_layers_per_stage",
            "layers_not_divisible",
        )
        return []
    low, extra = divmod(total, count)
    sizes = [low + (index < extra) for index in range(count)]
    sizes[0] -= first
    sizes[-1] -= last
    told.assume(
        f"torchtitan deals out {', '.join(map(str, sizes))} layers to its {count} model parts: "
        f"embedding and head weigh {first} and {last} layers"
    )
    return sizes


def _given(told: _Told, parts: Any, model: ModelSpec) -> list[int]:
    """Layers of each part of module_fqns_per_model_part."""
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        raise Unreadable(f"{_PARTS} must be a list of lists of names", told.file)
    names = [str(name) for part in parts for name in part]
    layers = [name for name in names if name.startswith("layers.")]
    if layers != [f"layers.{i}" for i in range(model.num_layers)]:
        told.refuse(
            f"the model parts name {len(layers)} layers, not 0 to {model.num_layers - 1} in order",
            _PARTS,
            "layers_not_divisible",
        )
    lost = [name for name in ("tok_embeddings", "norm", "lm_head") if name not in names]
    if lost:
        told.refuse(f"no model part names {', '.join(lost)}", _PARTS, "layers_not_divisible")
    return [sum(str(name).startswith("layers.") for name in part) for part in parts]


def _split(
    told: _Told, model: ModelSpec, pp: int, vpp: int, schedule: str, sizes: list[int]
) -> dict[str, Any]:
    """The plan's fields that give just these parts, the plainest; or the nearest."""
    placement = OURS[schedule].placement

    def fits(first: int = 0, last: int = 0, explicit: tuple[int, ...] = ()) -> bool:
        if sum(explicit or sizes) != model.num_layers or first + last > model.num_layers:
            return False
        layers = stage_layers(model.num_layers, pp, first, last, explicit)
        found, _, _ = virtual_stages(placement, layers, vpp, bool(explicit))
        return [int(n) for n in found] == sizes

    if fits():
        return {}
    stages = [sum(sizes[stage::pp]) for stage in range(pp)]
    for first, last in sorted(_ends(stages), key=lambda ends: (0 not in ends, sum(ends))):
        if fits(first, last):
            return {"first_stage_layers": first, "last_stage_layers": last}
    if fits(explicit=tuple(stages)):
        return {"stage_layers": tuple(stages)}
    told.assume(
        f"the model parts of {', '.join(map(str, sizes))} layers have no place in a plan: the "
        "nearest is taken"
    )
    if model.num_layers % (pp * vpp) == 0:
        return {}
    return {"stage_layers": tuple(stages)} if placement == "loop" and min(stages) > 0 else {}


def _ends(stages: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ends that differ from the middle: the first, the last, both."""
    yield stages[0], 0
    yield 0, stages[-1]
    yield stages[0], stages[-1]
