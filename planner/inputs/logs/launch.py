"""The launch behind a log: its config as the framework reads it, and what follows from both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.catalog import models
from cost_models.catalog.names import UnknownName
from cost_models.package_files import table
from planner import frameworks
from planner.documents.problems import RequestError, refuse
from planner.frameworks.read_results import Reading, Unreadable
from planner.frameworks.sources import framework_of, reading_of
from planner.inputs.logs import options
from planner.inputs.logs.draft import FIELDS, Draft
from planner.inputs.logs.run_log import CodeBase, Fact

# What makes another run of it: a script that says otherwise is not of this log.
IDENTITY = (
    "model.num_layers", "model.hidden_size", "model.num_attention_heads", "model.ffn_hidden_size",
    "training.seq_length", "training.global_batch_size", "plan.tp", "plan.pp", "plan.cp", "plan.ep",
    "plan.micro_batch_size",
)  # fmt: skip


# What may change from one launch of a run to the next.
OF_ONE_LAUNCH = ("model.name", "training.tokens")
# Code bases whose kernels the options chose as soon as there was a choice.
PLAIN: tuple[CodeBase, ...] = ("megatron-lm", "megatron-deepspeed")
# Code bases whose programs split no layer unless they say so.
UNSPLIT: tuple[CodeBase, ...] = ("trainer", "accelerate", "deepspeed")


def read(
    code_base: CodeBase, draft: Draft, files: Mapping[str, str]
) -> tuple[tuple[Fact, ...], Reading | None]:
    """(every field that is known, the whole launch where a framework can read it).

    Raises RequestError where the files cannot be read or are of another run.
    """
    _derive(code_base, draft)
    _name_model(draft)
    launch = _printed_launch(code_base, draft)
    from_files = _read_files(files, draft, launch)
    return _facts(draft, launch, from_files, code_base in PLAIN), launch or from_files


def _derive(code_base: CodeBase, draft: Draft) -> None:
    """Degrees that follow from others: of ranks, and of the micro-batches of a step."""
    if code_base in UNSPLIT and not draft.options:
        for field in ("plan.tp", "plan.pp"):
            draft.set_fact(field, 1, 0)
    _printed_degrees(draft)
    tp, pp = (draft.number(f"plan.{name}") or 0 for name in ("tp", "pp"))
    split = tp * pp * (draft.number("plan.cp") or 1)
    batch, steps = draft.number("training.global_batch_size"), draft.micro_batches
    if dp := _data_parallel(draft, split):
        draft.set_fact("plan.dp", dp, 0)
        if split:
            draft.set_fact("accelerators", dp * split, 0)
        if batch and steps and batch % (dp * steps) == 0:
            draft.set_fact(_MICRO, batch // (dp * steps), 0)


def _data_parallel(draft: Draft, split: int) -> int | None:
    """The data-parallel degree; split: ranks of one copy of the model, 0 where not known."""
    ranks, steps = draft.number("accelerators"), draft.micro_batches
    if dp := draft.number("plan.dp"):
        return dp
    if split and ranks and ranks % split == 0:
        return ranks // split
    batch, micro = (draft.number(f) for f in ("training.global_batch_size", _MICRO))
    return batch // (micro * steps) if batch and micro and steps else None


_MICRO = "plan.micro_batch_size"


def _printed_degrees(draft: Draft) -> None:
    """Printed arguments that are fields as they stand; the degrees give the number of ranks."""
    for name, field in FIELDS.items():
        text, line = draft.options.get(name, ("", 0))
        if text.isdecimal() and 0 < len(text) < 10:
            draft.set_fact(field, int(text), line)


def _name_model(draft: Draft) -> None:
    """The model of the catalog that the log names, where it prints nothing of its shape."""
    name = draft.facts.get("model.name")
    if name is None or draft.number("model.num_layers") or draft.options:
        return
    try:
        model = models.model(str(name.value).rsplit("/", 1)[-1])
    except UnknownName:
        return
    for field in type(model).model_fields:
        value = getattr(model, field)
        if field != "name" and isinstance(value, (bool, int, float, str)):
            draft.set_fact(f"model.{field}", value, name.line)
    draft.assume(f"the model is {model.name} of the catalog, by its name")


def _unknown_kernel(fact: Fact, draft: Draft) -> bool:
    """Whether a kernel is today's default, of a version that had no option for it."""
    names = ("attention_backend", "use_flash_attn", "num_layers")
    return (
        fact.field == "plan.attention_kernel"
        and fact.line == 0
        and [name for name in names if name in draft.options] == ["num_layers"]
    )


def _printed_launch(code_base: CodeBase, draft: Draft) -> Reading | None:
    """The whole launch, where the log prints enough for the framework's own reader."""
    size = draft.number("accelerators")
    try:
        if code_base in options.FRAMEWORKS and "num_layers" in draft.options:
            return options.reading(code_base, draft.options, draft.name, size)
        if code_base == "nanotron" and "config.yaml" in draft.configs:
            return _printed_config(code_base, draft, size)
    except Unreadable as error:
        draft.assume(f"what it prints of its launch is not read: {error.text}")
    return None


def _printed_config(code_base: CodeBase, draft: Draft, size: int | None) -> Reading:
    """What the framework reads from a config that the log prints, at the log's lines."""
    text, origin = draft.configs["config.yaml"]
    read = frameworks.get(code_base).read
    assert read is not None
    return options.at_lines(read({"config.yaml": text}, size), draft.name, origin)


def _read_files(files: Mapping[str, str], draft: Draft, launch: Reading | None) -> Reading | None:
    """What the files say.  Raises RequestError where it is another run than the log's."""
    if not files:
        return None
    framework = framework_of(files, None)
    reading = reading_of(framework, files, draft.number("accelerators"))
    logged_values = {path: fact.value for path, fact in draft.facts.items()}
    printed = {path for path, fact in draft.facts.items() if fact.line}
    if launch:
        launched = _values(launch)
        logged_values = launched | logged_values
        printed |= {path for path in launched if _place_of_setting(launch, path)[1]}
    for field, value in _values(reading).items():
        logged = logged_values.get(field)
        both = (
            field in printed and _place_of_setting(reading, field)[1] and field not in OF_ONE_LAUNCH
        )
        if (field in IDENTITY or both) and logged is not None and logged != value:
            raise _contradiction(field, value, logged)
    return reading


def _contradiction(field: str, value: Any, logged: Any) -> RequestError:
    """The refusal of files that say another value than the log."""
    kind = "model" if field.startswith("model.") else "run"
    return refuse(
        "/files",
        f"another_{kind}",
        f"the files are of another {kind}: they say {field} {value}, the log {logged}",
        value if isinstance(value, (int, str)) else str(value),
        allowed=(logged if isinstance(logged, (int, str)) else str(logged),),
    )


def _values(reading: Reading) -> dict[str, Any]:
    """The plain fields of a reading by their paths."""
    parts = {"model": reading.model, "training": reading.training, "plan": reading.plan}
    return {
        f"{part}.{name}": value
        for part, spec in parts.items()
        for name in type(spec).model_fields
        if isinstance(value := getattr(spec, name), (bool, int, float, str))
    }


def _facts(
    draft: Draft, launch: Reading | None, from_files: Reading | None, plain: bool
) -> tuple[Fact, ...]:
    """Every field that is known: as the log prints it, as its launch says it, as the files do.

    plain: the options chose the kernels as soon as there was a choice.
    """
    facts = dict(draft.facts)
    for reading, from_launch in ((launch, True), (from_files, False)):
        if reading is None:
            continue
        for path, value in _values(reading).items():
            file, line = _place_of_setting(reading, path)
            fact = Fact(field=path, value=value, file=file or draft.name, line=line)
            if plain and _unknown_kernel(fact, draft):
                continue
            # A launch is read by the framework's rules; single lines only by what they print.
            if from_launch and path not in ("model.name", "training.precision"):
                facts[path] = fact
            else:
                facts.setdefault(path, fact)
        facts.setdefault(
            "accelerators",
            Fact(field="accelerators", value=reading.plan.accelerators, file=draft.name),
        )
    return tuple(facts[path] for path in sorted(facts))


# Fields whose option has another name than they.
NAMED: dict[str, str] = table("planner.inputs.logs", "names.json")["options"]


def _place_of_setting(reading: Reading, path: str) -> tuple[str, int]:
    """(file, line) of the setting that says a field; no line where none does by its name."""
    part, _, name = path.partition(".")
    names: tuple[str, ...] = (NAMED.get(path, name),)
    if part == "plan" and reading.framework in frameworks.FRAMEWORKS:
        field = frameworks.get(reading.framework).fields.get(name)
        names = (*names, *(field.names if field else ()))
    plain_names = {_plain(n) for n in names}
    for setting in reversed(reading.settings):
        if _plain(setting.name) in plain_names:
            return setting.file, setting.line
    return "", 0


def _plain(name: str) -> str:
    return name.rsplit(".", 1)[-1].lstrip("-").replace("-", "_")
