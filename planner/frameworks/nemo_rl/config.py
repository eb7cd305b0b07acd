"""The YAML of a run with the files that it inherits, merged as in nemo_rl/utils/config.py.

An inherited file is among the given ones, or is a public configuration of the stored table
(`python -m tests.oracles.nemo_rl_configs CHECKOUT COMMIT`).
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import prod
from typing import Any

from cost_models import package_files
from planner.frameworks import training_calls, yaml_files
from planner.frameworks.bash import Argument, ProgramCall
from planner.frameworks.launch_files import SET, given_with
from planner.frameworks.read_results import Setting, Unreadable

TITLE = "NeMo-RL"
# Program -> the configuration that it reads without --config.
PROGRAMS = {
    "run_grpo.py": "grpo_math_1B.yaml", "run_sft.py": "sft.yaml", "run_dpo.py": "dpo.yaml",
    "run_rm.py": "rm.yaml", "run_ppo.py": "ppo_math_1B.yaml",
    "run_distillation.py": "distillation_math.yaml", "run_vlm_grpo.py": "vlm_grpo_3B.yaml",
    "run_vlm_sft.py": "sft_vlm_3B.yaml",
    "run_grpo_sliding_puzzle.py": "grpo_sliding_puzzle.yaml",
}  # fmt: skip
BACKENDS = ("megatron_cfg", "dtensor_cfg")
MOST_REFERENCES = 20
_POLICY = re.compile(r"^policy:", re.MULTILINE)
_INHERITS = re.compile(r"^defaults:(?:\s*-?\s*[\"']?\S+\.ya?ml)+", re.MULTILINE)
_SECTION = re.compile(
    r"^(policy|cluster|grpo|sft|dpo|rm|ppo|distillation|loss_fn|data|data_plane|value):",
    re.MULTILINE,
)
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_ARITHMETIC: dict[str, Callable[[list[float]], float]] = {
    "add": sum,
    "mul": prod,
    "max": max,
    "div": lambda values: values[0] / values[1],
}


@dataclass
class Config:
    """The settings by dotted key, and the file and line of each.

    launch: the call that starts the run, if there is one.
    """

    name: str
    tree: dict[str, Any]
    places: dict[str, tuple[str, int]]
    notes: list[str]
    launch: ProgramCall | None = None
    asked: set[str] = field(default_factory=set)

    def value(self, key: str, default: Any = None) -> Any:
        """The value with its references resolved; the default if it is empty."""
        self.asked.add(key)
        found = self._resolved(self._at(key), key, 0)
        return default if found is None else found

    def on(self, key: str, default: bool = False) -> bool:
        return str(self.value(key, default)).lower() == "true"

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number from 1.  Raises Unreadable."""
        found = self.value(key, default)
        text = str(int(found)) if isinstance(found, float) and found.is_integer() else str(found)
        if isinstance(found, bool) or not re.fullmatch(r"[1-9]\d{0,8}", text):
            got = f"must be a whole number from 1, got {text[:80]!r}"
            told = got if found is not None else f"is missing: --set {key}=..."
            raise Unreadable(f"{key} {told}", *self.place(key))
        return int(text)

    def place(self, key: str) -> tuple[str, int]:
        """File and line of a key, or else of the nearest key above it."""
        while key and key not in self.places:
            key = key.rpartition(".")[0]
        return self.places.get(key, (self.name, 0))

    def word(self, key: str, text: str) -> Argument:
        return Argument(text, *self.place(key))

    def setting(self, key: str) -> Setting:
        file, line = self.place(key)
        return Setting(name=key, value=str(self.value(key)), file=file, line=line)

    def group(self, key: str) -> Mapping[str, Any]:
        """The keys below a key."""
        found = self._at(key)
        return found if isinstance(found, dict) else {}

    def _at(self, key: str) -> Any:
        node: Any = self.tree
        for part in key.split("."):
            node = node.get(part) if isinstance(node, dict) else None
        return node

    def _resolved(self, value: Any, key: str, depth: int) -> Any:
        """A value with `${a.b}`, `${.b}` and `${mul:x,y}` as OmegaConf resolves them."""
        if not isinstance(value, str) or "${" not in value:
            return value
        while (match := _REFERENCE.search(value)) is not None:
            if depth > MOST_REFERENCES:
                raise Unreadable(f"{key}: circular reference", *self.place(key))
            depth += 1
            found = self._referred(match[1].strip(), key, depth)
            if match[0] == value:
                return self._resolved(found, key, depth)
            value = value[: match.start()] + str(found) + value[match.end() :]
        return value

    def _referred(self, text: str, key: str, depth: int) -> Any:
        function, colon, words = text.partition(":")
        if not colon:
            base = key.rsplit(".", len(text) - len(text.lstrip(".")))[0] if text[:1] == "." else ""
            target = f"{base}.{text.lstrip('.')}".strip(".")
            return self._resolved(self._at(target), target, depth)
        try:
            if function in _ARITHMETIC:
                found = _ARITHMETIC[function]([float(word) for word in words.split(",")])
                return int(found) if found == int(found) else found
        except (ValueError, ZeroDivisionError, IndexError, OverflowError):
            pass
        text = f"{key} is ${{{text[:80]}}}, which is not resolved: --set {key}=..."
        raise Unreadable(text, *self.place(key))


def table() -> dict[str, Any]:
    """configs.json: the public configurations by their path, with their commit."""
    return package_files.table("planner.frameworks.nemo_rl", "configs.json")


def call(files: Mapping[str, str]) -> training_calls.TrainingCall | None:
    """The call of one of NeMo-RL's programs; None if no script has one."""
    # Others have programs of these names too.
    foreign = {
        name.rsplit("/", 1)[-1]
        for name, text in files.items()
        if name.endswith(".py") and "nemo_rl" not in text
    }
    return training_calls.training_call_if_any(
        files,
        PROGRAMS,
        lambda one: (
            one.program.text.rsplit("/", 1)[-1] not in foreign
            and _trains(one)
            and not _names_another(one, files)
        ),
        TITLE,
    )


def _names_another(launch: ProgramCall, files: Mapping[str, str]) -> bool:
    """Whether the configuration that a call names is at hand, and is no run of NeMo-RL."""
    words = " ".join(word.text for word in launch.arguments)
    named = re.search(r"--config[= ](\S+)", words)
    last = named[1].rsplit("/", 1)[-1] if named else ""
    text = next((text for name, text in files.items() if name.rsplit("/", 1)[-1] == last), None)
    return text is not None and not (_POLICY.search(text) or _INHERITS.search(text))


def _trains(launch: ProgramCall) -> bool:
    name = launch.program.text.rsplit("/", 1)[-1]
    words = [word.text for word in launch.arguments]
    said = [word for word in words if word.lstrip("+").startswith(("policy.", "cluster."))]
    return name in PROGRAMS and bool(
        said or "--config" in words or any(word.startswith("--config=") for word in words)
    )


def of_files(files: Mapping[str, str]) -> Config | None:
    """The run that the files hold; None if they hold none.

    Raises Unreadable if a file that it inherits, or a value, is missing.
    """
    found = call(files)
    if found is not None:
        return _of_call(found, files)
    name = next(_runs(files), None)
    return None if name is None else _with_given(_inherited(name, files), files)


def _runs(files: Mapping[str, str]) -> Iterator[str]:
    """YAML files of NeMo-RL runs; those that no other file inherits come first."""
    said = [
        name for name, text in files.items() if name.endswith((".yaml", ".yml")) and _is_run(text)
    ]
    inherited = " ".join(one for name in said for one in _INHERITS.findall(files[name]))
    yield from sorted(said, key=lambda name: posixpath.basename(name) in inherited)


def _is_run(text: str) -> bool:
    """Whether a YAML text is a configuration of NeMo-RL."""
    if _POLICY.search(text) and any(f"{one}:" in text for one in BACKENDS):
        return True
    return bool(_INHERITS.search(text) and _SECTION.search(text))


def _of_call(found: training_calls.TrainingCall, files: Mapping[str, str]) -> Config:
    """The configuration that a call names, with its overrides."""
    launch = found.launch
    words = list(launch.arguments)
    name = PROGRAMS[launch.program.text.rsplit("/", 1)[-1]]
    overrides: dict[str, Argument] = {}
    for place, word in enumerate(words):
        option, equals, value = word.text.partition("=")
        if option == "--config":
            after = words[place + 1] if not equals and place + 1 < len(words) else None
            name = value or (after.text if after is not None else name)
        elif equals and not option.startswith("-"):
            overrides[option.lstrip("+")] = Argument(value, word.file, word.line, word.known)
    config = _inherited(name, files, launch.program)
    for key, word in overrides.items():
        _set(config, key, word)
    config.launch = launch
    config.notes += found.notes
    return _with_given(config, files)


def _with_given(config: Config, files: Mapping[str, str]) -> Config:
    for key, text in given_with(files).values.items():
        if "." in key and not key.startswith("-"):
            _set(config, key, Argument(text, SET, 0))
    return config


def _set(config: Config, key: str, word: Argument) -> None:
    """Sets a key as Hydra's overrides do.  Raises Unreadable."""
    if not word.known and key.startswith(("policy.", "cluster.")):
        text = f"{key} is {word.text[:80]}, which the files do not say: --set {key}=..."
        raise Unreadable(text, word.file, word.line)
    node = config.tree
    *parents, last = key.split(".")
    for parent in parents:
        below = node.get(parent)
        node[parent] = node = below if isinstance(below, dict) else {}
    node[last] = yaml_files.read(f"value: {word.text}", word.file).values["value"]
    config.places[key] = (word.file, word.line)


def _inherited(name: str, files: Mapping[str, str], program: Argument | None = None) -> Config:
    """The configuration of a file and all that it inherits; a file overrides those it inherits."""
    config = Config(name, {}, {}, [])
    _merge_file(config, name, files, program, ())
    return config


def _merge_file(
    config: Config,
    name: str,
    files: Mapping[str, str],
    asked_by: Argument | None,
    above: tuple[str, ...],
) -> None:
    """Merges a file into a configuration, after those that it inherits.

    above: the files that inherit it.
    """
    if name in above:
        raise Unreadable("its defaults form a cycle", name)
    own = _given_file(name, files, above)
    if own is not None:
        file = yaml_files.read(files[own], own)
        tree, places = dict(file.values), {key: (own, line) for key, line in file.lines.items()}
        config.notes += file.notes()
    else:
        known = _public(name, asked_by)
        tree, places = json.loads(json.dumps(table()["configs"][known])), {}
        config.notes.append(f"{known} is taken from {table()['repository']} {table()['commit']}")
        own = known
    parents = tree.pop("defaults", [])
    for parent in [parents] if isinstance(parents, str) else parents:
        said = Argument(str(parent), *places.get("defaults", (own, 0)))
        path = posixpath.normpath(posixpath.join(posixpath.dirname(own), str(parent)))
        _merge_file(config, path, files, said, (*above, own))
    _merge(config.tree, tree)
    config.places |= places


def _given_file(name: str, files: Mapping[str, str], above: tuple[str, ...]) -> str | None:
    """The given file that a path means; if the folders differ, the one of the same name."""
    if name in files:
        return name
    base = posixpath.basename(name)
    found = (one for one in files if posixpath.basename(one) == base and one not in above)
    return next(found, None)


def _public(name: str, asked_by: Argument | None) -> str:
    """The path of the public configuration with that path or name.  Raises Unreadable."""
    base = posixpath.basename(name)
    if name in table()["configs"]:
        return name
    for path in table()["configs"]:
        if posixpath.basename(path) == base:
            return str(path)
    near = get_close_matches(base[:120], map(posixpath.basename, table()["configs"]), 2, 0.7)
    hint = f" (the nearest: {', '.join(near)})" if near else ""
    place = (asked_by.file, asked_by.line) if asked_by is not None else ("", 0)
    raise Unreadable(
        f"{name[:200]} is neither among the files nor a public configuration of {TITLE} "
        f"{table()['commit']}{hint}: add the file",
        *place,
    )


def _merge(base: dict[str, Any], over: dict[str, Any]) -> None:
    """Merges one tree over another as merge_with_override does: `_override_` replaces a section."""
    for key, value in over.items():
        if isinstance(value, dict) and value.pop("_override_", False) is True:
            base.pop(key, None)
        _merge_key(base, key, value)


def _merge_key(base: dict[str, Any], key: str, value: Any) -> None:
    """Merges one key over a tree; `_override_` has no effect below the top level."""
    if isinstance(value, dict) and isinstance(base.get(key), dict):
        for name, one in value.items():
            _merge_key(base[key], name, one)
    else:
        base[key] = value
