"""torchtitan's TOML, its format up to 0.2.2, translated to the settings of 0.3.0.

Source: config_manager.py and config/job_config.py of 0.1.0 to 0.2.2, and the argparse options of
2024, which had other sections.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cost_models.package_files import table
from planner.frameworks import architecture
from planner.frameworks.bash import Argument
from planner.frameworks.config_files import toml_table
from planner.frameworks.given_values import hint
from planner.frameworks.python.static_values import Call
from planner.frameworks.read_results import Setting, StatedValue, Unreadable
from planner.frameworks.torchtitan import registry
from planner.frameworks.torchtitan.trainer_settings import TrainerSettings, gather_settings

FILE_OPTION = "--job.config_file"
_MARK = re.compile(
    r"^\[(?:parallelism|training|experimental|activation_checkpoint)\]", re.MULTILINE
)
_MOST_DIGITS = 18
_KEYS = table("planner.frameworks.torchtitan", "toml_keys.json")
# Name in older versions -> name in 0.3.0.
_RENAMED: dict[str, str] = _KEYS["renamed"]
# Sections without effect on a step's time or memory.
_NO_EFFECT = frozenset(
    {"job", "profiling", "metrics", "lr_scheduler", "checkpoint", "comm", "memory_estimation"}
    | {"fault_tolerance", "validation", "debug", "float8", "mx", "quantize"}
)
# Known keys of the other sections, which are read here or do not affect a plan.
_KNOWN = frozenset(_KEYS["keys"])
_NORMS = {"rmsnorm": "rmsnorm", "fused_rmsnorm": "rmsnorm", "compiled_rmsnorm": "rmsnorm"}
_CHECKPOINTS = {"full": "FullAC", "selective": "SelectiveAC", "memory_budget": "MemoryBudgetAC"}
# Suffix of a flavor -> its attention backend.
_ATTENTION = {"_flex_attn": "flex", "_flex": "flex", "_varlen_attn": "varlen", "_varlen": "varlen"}


def is_one(files: Mapping[str, str]) -> bool:
    """Whether some TOML is a configuration of torchtitan."""
    return any(_marked(name, text) for name, text in files.items())


def _marked(name: str, text: str) -> bool:
    return (
        name.endswith(".toml")
        and _MARK.search(text) is not None
        and re.search(r"^\s*flavor\s*=", text, re.MULTILINE) is not None
    )


def names_one(words: Sequence[Argument]) -> bool:
    """Whether the words of a call name a TOML."""
    return any(_option(word.text) == FILE_OPTION for word in words)


def _option(word: str) -> str:
    return word.partition("=")[0].replace("-", "_").replace("__", "--", 1)


def trainer_settings(
    files: Mapping[str, str], words: Sequence[Argument], modelled: bool
) -> TrainerSettings:
    """The settings of a TOML and of the command line.  Raises Unreadable.

    modelled: the model is given, so its flavor is not looked up.
    """
    name, rest, notes = _chosen(files, words)
    values = _values(name, files[name])
    _override(values, rest)
    return _Reader(values, name, modelled, notes).trainer_settings()


def _chosen(
    files: Mapping[str, str], words: Sequence[Argument]
) -> tuple[str, list[Argument], list[str]]:
    """(name of the TOML, the words of the command line that do not name it, notes)."""
    rest, wanted, named = list[Argument](), False, ""
    for word in words:
        if wanted:
            named, wanted = word.text, False
        elif _option(word.text) == FILE_OPTION:
            named, wanted = word.text.partition("=")[2], "=" not in word.text
        else:
            rest.append(word)
    marked = [name for name, text in files.items() if _marked(name, text)]
    last = named.rsplit("/", 1)[-1]
    same = [name for name in marked if name.rsplit("/", 1)[-1] == last]
    if len(same or marked) != 1:
        what = f"{FILE_OPTION} is {named}" if named else f"give one for {FILE_OPTION}"
        if not marked:
            raise Unreadable(f"{what}, torchtitan's TOML, which is not among the files: give it")
        raise Unreadable(f"{what} (TOML among the files: {', '.join(marked)})")
    notes = [] if same or not named else [f"{marked[0]} is taken for {FILE_OPTION} {named}"]
    return (same or marked)[0], rest, notes


def _values(name: str, text: str) -> dict[str, StatedValue]:
    """Every value by its dotted key.  Raises Unreadable."""
    document = toml_table(text, name)
    lines = _lines(text)
    return {key: StatedValue(one, name, lines.get(key, 0)) for key, one in _leaves(document, "")}


def _leaves(node: dict[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        full = f"{path}.{key}" if path else key
        if isinstance(value, dict) and full.count(".") < 8:
            yield from _leaves(value, full)
        else:
            yield full, value


def _lines(text: str) -> dict[str, int]:
    """The line of every dotted key."""
    found, section = dict[str, int](), ""
    for number, line in enumerate(text.split("\n"), 1):
        if head := re.match(r"\s*\[([\w.-]+)\]", line):
            section = head[1] + "."
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            found.setdefault(section + key[1], number)
    return found


def _override(values: dict[str, StatedValue], words: Sequence[Argument]) -> None:
    """Apply the options of the command line, which override the file."""
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        option, equals, text = word.text.partition("=")
        if not option.startswith("--") or "." not in option:
            if not word.known:
                continue
            raise word.unreadable(f"{word.text!r} belongs to no option")
        key = option.removeprefix("--").replace("-", "_")
        known = True
        if not equals and place < len(words) and not words[place].text.startswith("--"):
            text, known = words[place].text, words[place].known
            place += 1
            equals = "="
        if not known and key.startswith(_ASIDE):
            continue
        if not known:
            raise word.unreadable(f"{option} is {text}, which the files do not say")
        section, _, last = key.rpartition(".")
        if not equals and last.startswith("no_"):
            key, text = f"{section}.{last.removeprefix('no_')}", "false"
        values[key] = StatedValue(_typed(text if equals or text else "true"), word.file, word.line)


def _typed(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    if re.fullmatch(rf"-?\d{{1,{_MOST_DIGITS}}}", text):
        return int(text)
    if text in ("true", "false"):
        return text == "true"
    return text


# Sections that no plan has anything of.
_ASIDE = ("job.", "profiling.", "metrics.", "checkpoint.", "comm.", "debug.", "validation.")


class _Reader:
    """Translates the values of one configuration to a Trainer.Config of 0.3.0."""

    def __init__(
        self, values: Mapping[str, StatedValue], file: str, modelled: bool, notes: list[str]
    ) -> None:
        self.values, self.file, self.modelled, self.notes = values, file, modelled, notes
        self.asked: set[str] = set()
        self.config = Call("torchtitan.trainer.Trainer.Config", 0)
        for section in ("training", "parallelism", "compile"):
            self.config.set(section, Call(registry.SECTIONS[section], 0), 0)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        found = self.values.get(key)
        return default if found is None else found.value

    def wrong(self, key: str, text: str) -> Unreadable:
        found = self.values.get(key)
        return Unreadable(text, found.file if found else self.file, found.line if found else 0)

    def trainer_settings(self) -> TrainerSettings:
        """The translated settings.  Raises Unreadable."""
        left, unknown = self._settings()
        self._checkpoint()
        self._model()
        self._pipeline()
        self._notes()
        result = TrainerSettings(self.config, self.file)
        gather_settings(result)
        result.settings += [*left, *unknown]
        result.unknown += unknown
        result.asked |= self.asked
        for note in self.notes:
            result.assume(note)
        architecture.refuse(unknown, named=self.modelled)
        # Up to 0.2.2 there are no CUDA graphs and no choice of an SPMD backend.
        self.config.kwargs["training"].set("disable_cuda_graphs", True, 0)
        self.config.kwargs["parallelism"].set("spmd_backend", "default", 0)
        return result

    def _settings(self) -> tuple[list[Setting], list[Setting]]:
        """Copies the settings that 0.3.0 has too; returns (other known ones, unknown ones)."""
        fields = registry.document()["fields"]
        left: list[Setting] = []
        unknown: list[Setting] = []
        for key, one in self.values.items():
            section, _, name = _RENAMED.get(key, key).partition(".")
            if section in fields and name in fields[section]:
                value = self._listed(fields[section][name], one.value)
                self.config.kwargs[section].set(name, value, one.line)
                continue
            shown = Setting(name=key, value=str(one.value)[:200], file=one.file, line=one.line)
            known = section in _NO_EFFECT or ".".join(key.split(".")[:2]) in _KNOWN
            if section == "model" and not known and not self.modelled:
                names = [name for name in _KNOWN if name.startswith("model.")]
                text = f"{key} is not its setting and may change the model{hint(key, names)}"
                raise Unreadable(text, one.file, one.line)
            (left if known else unknown).append(shown)
        return left, unknown

    @staticmethod
    def _listed(default: Any, value: Any) -> Any:
        """The value; split at commas if the field is a list and the value comes from an option."""
        return value.split(",") if isinstance(default, list) and isinstance(value, str) else value

    def _checkpoint(self) -> None:
        key = "activation_checkpoint.mode"
        mode, option = (
            self.get(key, "selective"),
            self.get("activation_checkpoint.selective_ac_option", "2"),
        )
        if mode != "none" and mode not in _CHECKPOINTS:
            known = ", ".join((*_CHECKPOINTS, "none"))
            raise self.wrong(key, f"{key} is {str(mode)[:80]!r}; it is one of {known}")
        line = self.values[key].line if key in self.values else 0
        made = None if mode == "none" else Call(f"{_CHECKPOINTS[mode]}.Config", line)
        self.config.set("activation_checkpoint", made, line)
        if mode == "selective" and option != "op":
            self.notes.append(
                f"selective_ac_option {option} recomputes one whole layer of every {option}, "
                "costed as recompute by operator"
            )

    def _model(self) -> None:
        name, flavor = self.get("model.name", "llama3"), self.get("model.flavor", "debugmodel")
        models = registry.document()["models"]
        attention, base = "sdpa", str(flavor)
        for ending, kind in _ATTENTION.items():
            if base.endswith(ending):
                attention, base = kind, base.removesuffix(ending)
                break
        if not self.modelled and name not in models:
            text = f"model.name is {str(name)[:80]!r}: give the model (--model)"
            raise self.wrong("model.name", f"{text}; known are {', '.join(models)}")
        if not self.modelled and base not in models[name]["flavors"]:
            known = models[name]["flavors"]
            text = f"{name} has no flavor {str(flavor)[:80]!r} that is known"
            raise self.wrong("model.flavor", f"{text} (known: {', '.join(known)})")
        if not self.modelled and base == "debugmodel":
            self.notes.append("debugmodel has other sizes in each release: those of 0.3.0 are read")
        norm = self.get("model.norm_type", "rmsnorm")
        if norm not in _NORMS:
            raise self.wrong("model.norm_type", f"model.norm_type {norm!r} is not understood")
        line = self.values["model.flavor"].line if "model.flavor" in self.values else 0
        package = name if name in models else "llama3"
        call = Call(f"torchtitan.models.{package}.model_registry", line)
        call.args = (base,)
        call.set("attn_backend", attention, line)
        call.set("converters", list(self._converters()), line)
        backend = self.get("parallelism.expert_parallel_comm_backend", "standard")
        call.set("moe_comm_backend", backend, line)
        self.config.set("model_spec", call, line)

    def _converters(self) -> Iterator[Call]:
        found = self.get("model.converters", [])
        names = found.split(",") if isinstance(found, str) else found
        if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
            raise self.wrong("model.converters", "model.converters must be a list of names")
        if self.get("training.enable_float8_linear") or self.get("float8.enable_float8_linear"):
            names = [*names, "float8"]
        for name in filter(None, map(str.strip, names)):
            kind = name.removeprefix("quantize.linear.")
            line = self.values["model.converters"].line if "model.converters" in self.values else 0
            if kind == "float8":
                recipe = self.get("quantize.linear.float8.recipe_name")
                recipe = recipe or self.get("float8.recipe_name") or "tensorwise"
                words = {"recipe_name": recipe}
                yield Call("quantization.Float8LinearConverter.Config", line, kwargs=words)
            elif kind == "mx":
                yield Call("quantization.MXFP8LinearConverter.Config", line)
            else:
                yield Call(name, line)

    def _pipeline(self) -> None:
        """Translate the number of micro-batches and the split points of older versions."""
        parallel, training = self.config.kwargs["parallelism"], self.config.kwargs["training"]
        degree, old = parallel.kwargs.get("pipeline_parallel_degree", 1), "experimental."
        key = f"{old}pipeline_parallel_microbatches"
        if f"{old}pipeline_parallel_degree" in self.values or key in self.values:
            count = self.get(key) or degree
            local = training.kwargs.get("local_batch_size", 8)
            if all(isinstance(one, int) and one > 0 for one in (count, local)):
                parallel.set("pipeline_parallel_microbatch_size", max(local // count, 1), 0)
        for section in ("experimental", "parallelism"):
            points = self.get(f"{section}.pipeline_parallel_split_points")
            if points:
                self.notes.append(
                    f"pipeline_parallel_split_points {str(points)[:120]}: stages are taken as "
                    "torchtitan would assign the layers"
                )

    def _notes(self) -> None:
        optimizer = self.get("optimizer.name", "AdamW")
        if optimizer not in ("AdamW", "Adam"):
            self.notes.append(f"optimizer {optimizer} is costed as AdamW")
        if self.get("optimizer.early_step_in_backward"):
            self.notes.append("optimizer steps inside the backward pass are not costed")
        if self.get("parallelism.expert_tensor_parallel_degree", 1) != 1:
            self.notes.append("experts are costed whole on each tp rank, not split")
        for key in ("custom_import", "custom_model_path", "custom_args_module"):
            if self.get(f"experimental.{key}"):
                self.notes.append(f"experimental.{key}: custom code, which is not read")
