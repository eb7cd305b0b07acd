"""What calls of libraries stand for in a script: its options, files, environment, and machine."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planner.documents.loading import parse_json
from planner.documents.problems import RequestError
from planner.frameworks import yaml_files
from planner.frameworks.python import command_lines
from planner.frameworks.python.expressions import MAX_ITEMS
from planner.frameworks.python.static_values import Call, Class, Function, Instance, Unknown, Value
from planner.frameworks.read_results import Unreadable

# The machine of a plan: an accelerator that has bf16.
_MACHINE: dict[str, Value] = {
    "torch.cuda.is_available": True,
    "torch.cuda.is_bf16_supported": True,
    "is_bfloat16_supported": True,
    "unsloth.is_bfloat16_supported": True,
    "torch.cuda.get_device_capability": (9, 0),
    "torch.backends.mps.is_available": False,
}
_ENVIRONMENT = ("os.environ.get", "os.getenv", "environ.get", "getenv")
_OPENED = ("open", "builtins.open", "io.open", "codecs.open")
_SAME = ("Path", "pathlib.Path", "PurePath", "os.path.expanduser", "os.path.abspath",
         "os.path.expandvars", "OmegaConf.to_container", "omegaconf.OmegaConf.to_container",
         "OmegaConf.create", "omegaconf.OmegaConf.create", "str", "deepcopy")  # fmt: skip
_JOINS = ("os.path.join", "posixpath.join", "path.join")
_LOADS = ("safe_load", "full_load", "load", "loads")
_FIELDS = ("field", "dataclasses.field", "Field", "pydantic.Field")
# Methods of texts that leave no longer text.
_OF_TEXT = ("lower", "upper", "strip", "lstrip", "rstrip", "startswith", "endswith", "split",
            "rsplit", "title", "removeprefix", "removesuffix")  # fmt: skip
_CONFIGURATIONS = (".yaml", ".yml", ".json")
_OPENS_BY_NAME = ("OmegaConf.load", "omegaconf.OmegaConf.load")


def joined_path(*parts: str) -> str:
    return posixpath.join(*parts)


class Library:
    """The values of calls of libraries, for one command line, environment and set of files."""

    def __init__(
        self, files: Mapping[str, str], arguments: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.files, self.environment = files, environment
        self.options = command_lines.Options(files, arguments)

    def value(self, call: Call) -> Value:
        """What a call stands for; the call itself where that is not known."""
        name = call.name.removeprefix("builtins.")
        if isinstance(call.owner, Call):
            return self.options.of_method(call)
        if name in _MACHINE:
            return _MACHINE[name]
        if name in _ENVIRONMENT and call.args and isinstance(call.args[0], str):
            usual = call.args[1] if len(call.args) > 1 else call.kwargs.get("default")
            return self.environment.get(call.args[0], usual)
        if name in _SAME and len(call.args) == 1 and isinstance(call.args[0], str | dict | list):
            return call.args[0]
        if name in _JOINS and all(isinstance(one, str) for one in call.args) and call.args:
            return joined_path(*call.args)
        if name.rsplit(".", 1)[-1] in _LOADS and call.args:
            return self.loaded(name, call)
        if name in _OPENS_BY_NAME and call.args:
            return self.document(call.args[0], call)
        return self.of_objects(name, call)

    def of_objects(self, name: str, call: Call) -> Value:
        """What a call of a built-in function on an object stands for."""
        first = call.args[0] if call.args else None
        if name in ("vars", "asdict", "dataclasses.asdict") and isinstance(first, Call):
            return dict(first.kwargs)
        if name == "getattr" and len(call.args) > 1 and isinstance(first, Call):
            usual = call.args[2] if len(call.args) > 2 else Unknown(str(call.args[1]), call.line)
            return first.kwargs.get(call.args[1], usual) if isinstance(call.args[1], str) else usual
        if name in _FIELDS:
            return _field(call)
        if name == "setattr" and len(call.args) == 3 and isinstance(first, Call):
            first.set(str(call.args[1]), call.args[2], call.line)
        return self.options.of_function(call)

    def loaded(self, name: str, call: Call) -> Value:
        """The document that yaml.safe_load, json.load and their like read."""
        first = call.args[0]
        if name.startswith(("yaml", "json", "toml", "safe_load")) and isinstance(first, Call):
            if first.name in _OPENED or first.name == "open":
                return self.document(first.args[0] if first.args else None, call)
        return call

    def document(self, path: Value, call: Call) -> Value:
        """The document of a YAML or JSON file among the files."""
        last = path.rsplit("/", 1)[-1] if isinstance(path, str) else ""
        if not last:  # the only configuration beside the script
            given = [one for one in self.files if one.endswith(_CONFIGURATIONS)]
            last = given[0] if len(given) == 1 else ""
        name = next((one for one in self.files if one.rsplit("/", 1)[-1] == last), None)
        if not last or name is None:
            shown = path if isinstance(path, str) else "a configuration"
            return Unknown(f"{shown}, which is not among the files", call.line)
        return read_document(self.files[name], name, call.line)


def read_document(text: str, name: str, line: int) -> Value:
    """The values of a YAML or JSON; unknown if it is none."""
    try:
        if name.endswith(".json"):
            return parse_json(text)
        return yaml_files.read(text, name).values
    except (Unreadable, RequestError):
        return Unknown(f"{name}, which cannot be read", line)


def _field(call: Call) -> Value:
    """The default of a dataclass's or pydantic's field."""
    usual = call.kwargs.get("default", call.args[0] if call.args else None)
    factory = call.kwargs.get("default_factory")
    if isinstance(factory, Function) and len(factory.node.body) == 1:
        return factory
    if "default" not in call.kwargs and not call.args:
        return {"list": [], "dict": {}}.get(getattr(factory, "name", ""), Unknown("field", call.line))
    return Unknown("field", call.line) if usual is ... else usual


def of_text(name: str, call: Call, owner: Value = None) -> Value:
    """The value of a method of a text, a list or a mapping, None where it is not worked out."""
    if isinstance(owner, dict):
        return _of_mapping(name, call, owner)
    if isinstance(owner, list):
        return list(owner) if name == "copy" else None
    if isinstance(owner, str):
        if name == "join" and call.args and isinstance(call.args[0], list | tuple):
            return _joined(owner, call.args[0])
        if name in _OF_TEXT and all(isinstance(one, str | int) for one in call.args):
            try:
                return getattr(owner, name)(*call.args)
            except (TypeError, ValueError):
                return None
        return None
    if name == "dict" and len(call.args) == 1 and isinstance(call.args[0], dict):
        return {**call.args[0], **call.kwargs}
    return None


def _joined(owner: str, parts: Sequence[Value]) -> Value:
    if not all(isinstance(one, str) for one in parts):
        return None
    whole = sum(len(one) + len(owner) for one in parts)
    return owner.join(parts) if whole < MAX_ITEMS else None


def _of_mapping(name: str, call: Call, owner: dict[Any, Value]) -> Value:
    key = call.args[0] if call.args else None
    if name in ("get", "pop", "setdefault") and isinstance(key, str | int):
        usual = call.args[1] if len(call.args) > 1 else None
        found = owner.get(key, usual)
        return Unknown(f"{key!r}", call.line) if found is None and key not in owner and (
            len(call.args) < 2 and name != "get"
        ) else found
    if name == "update":
        for one in (*call.args, call.kwargs):
            owner.update(one if isinstance(one, dict) else {})
        return owner
    views: dict[str, Callable[[], Value]] = {
        "items": lambda: [tuple(one) for one in owner.items()],
        "keys": lambda: list(owner),
        "values": lambda: list(owner.values()),
        "copy": lambda: dict(owner),
    }
    return views[name]() if name in views else None


__all__ = ["Class", "Instance", "Library", "joined_path", "of_text", "read_document"]
