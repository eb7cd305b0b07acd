"""What calls of libraries stand for in a script: its options, files, environment, and machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from planner.frameworks import yaml_files
from planner.frameworks.config_files import json_value
from planner.frameworks.python import hydra
from planner.frameworks.python.command_lines import Options
from planner.frameworks.python.static_values import Call, Function, Instance, Unknown, Value
from planner.frameworks.python.texts import SOME_FOLDER, joined_path
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
_ENVIRONMENT = ("os.environ.get", "os.getenv")
# Variables that decide nothing that is planned.
_OF_PROCESS = re.compile(r"RANK|WORLD_SIZE|TOKEN|KEY|CACHE|HOME|WANDB|MASTER_|OUTPUT|LOG|SEED")
# Those that are secret, without which a script may stop.
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD")
_MOST_NAMED = 20
_SAME = ("Path", "pathlib.Path", "os.path.expanduser", "os.path.abspath", "os.path.expandvars",
         "OmegaConf.to_container", "omegaconf.OmegaConf.to_container", "OmegaConf.create",
         "omegaconf.OmegaConf.create", "str")  # fmt: skip
_EXIST = ("os.path.exists", "os.path.isfile")
_LOADS = ("safe_load", "full_load", "load", "loads")
_OF_FILES = ("yaml", "json", "toml", "tomllib", "safe_load")
_OPENS = ("OmegaConf.load", "omegaconf.OmegaConf.load")
# A function of a module that is not here, which by its name loads a configuration.
_OF_ITS_OWN = re.compile(
    r"(^|[._])(load|read|parse|get)_?\w*(config|cfg|conf|ya?ml|json|params)\w*$"
)
_FIELDS = ("field", "dataclasses.field", "Field", "pydantic.Field", "typer.Option",
           "typer.Argument")  # fmt: skip
_CONFIGURATIONS = (".yaml", ".yml", ".json")


class Library:
    """The values of calls of libraries, for one command line, environment and set of files.

    Raises Unreadable where a call opens a document that breaks at some place.
    missing: the documents that are opened and not among the files; taken: those that stand for one
    whose name is not known; filled_by_default: the classes of objects that functions are given;
    defaulted: the variables of
    the environment that are not known, whose defaults are taken; unset: the keys of configurations
    that are not known, likewise; filled: the classes of objects
    whose fields are set by names that are not known; cells_left_out: where cells of a notebook
    begin that cannot be followed.
    """

    def __init__(
        self, files: Mapping[str, str], arguments: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.files, self.environment, self.arguments = files, environment, arguments
        self.options = Options(files, arguments)
        self.missing: dict[str, None] = {}
        self.defaulted: dict[str, None] = {}
        self.taken: dict[str, None] = {}
        self.filled_by_default: dict[str, None] = {}
        self.unset: dict[str, None] = {}
        self.filled: dict[str, None] = {}
        self.cells_left_out: list[str] = []

    @property
    def notes(self) -> Iterator[str]:
        """A sentence on the variables and the keys that have their defaults."""
        for what, kept in (
            ("variables that the environment could set", self.defaulted),
            ("keys that a configuration could set", self.unset),
        ):
            named = [one for one in kept if not _OF_PROCESS.search(one.upper())]
            if named:
                yield f"{what} have their defaults: {', '.join(named[:_MOST_NAMED])}"
        for name in self.filled_by_default:
            yield f"an object of {name} that a function is given is taken to have its defaults"
        for name in self.taken:
            yield f"{name} is taken to be the configuration that the program opens"
        if self.cells_left_out:
            places = ", ".join(self.cells_left_out[:_MOST_NAMED])
            yield f"cells that are no Python are left out: {places}"
        for name in self.filled:
            yield f"fields of {name} have their defaults: which of them setattr sets is not known"

    def composed(self, said: Mapping[str, str]) -> dict[str, Value] | None:
        """The configuration that a function with such a hydra.main is given."""
        made = hydra.Composition(self.files, self.arguments)
        try:
            found = made.of_main(said)
        except Unreadable:
            return None
        self.missing |= made.missing
        return found

    def handed(self, call: Call) -> Mapping[str, Value]:
        """The arguments by name of a function that a call is handed."""
        if call.short == "partial":
            return call.kwargs
        if call.short == "Fire" or call.name == "typer.run":
            return self.options.plain
        known = call.kwargs.get("fn_kwargs")
        return known if isinstance(known, dict) else {}

    def usual(self, call: Call, args: Sequence[Value]) -> Value:
        """The plain default that a look-up has for a key of what is not known; None without one."""
        key, usual = (*args, None, None)[:2]
        usual = call.kwargs.get("default", usual)
        if not isinstance(key, str) or not isinstance(usual, str | int | float) or usual == "":
            return None
        self.unset[key] = None
        return usual

    def value(self, call: Call) -> Value:
        """What a call stands for; the call itself where that is not known."""
        if isinstance(call.owner, Call):
            return self.options.of_method(call)
        name, first = call.name, next(iter(call.args), None)
        if name in _MACHINE:
            return _MACHINE[name]
        if name in _ENVIRONMENT and isinstance(first, str):
            return self._variable(first, call)
        if (path := self._of_path(name, call, first)) is not None:
            return path
        if name in _FIELDS:
            return _field(call)
        if name == "getattr" and isinstance(first, Unknown | dict) and len(call.args) > 2:
            return self._attribute(call, first)
        return self._of_document(name, call, first)

    def _of_path(self, name: str, call: Call, first: Value) -> Value:
        """What a call on a path stands for, which may be handed back as it is; None for others."""
        if name in _SAME and isinstance(first, str | dict | list) and len(call.args) == 1:
            return first
        if name in _EXIST and isinstance(first, str) and self._is_document(first):
            return True
        if name == "os.path.join" and call.args and isinstance(call.args[-1], str):
            return joined_path(*(o if isinstance(o, str) else SOME_FOLDER for o in call.args))
        return None

    def _attribute(self, call: Call, first: Unknown | dict[Value, Value]) -> Value:
        """What getattr with a default stands for, of a mapping or of what is not known."""
        if isinstance(first, dict):
            return first.get(call.args[1], call.args[2])
        usual = self.usual(call, call.args[1:])
        return call if usual is None else usual

    def _variable(self, name: str, call: Call) -> Value:
        """The value of an environment variable, or the default that a call has for it."""
        usual = call.args[1] if len(call.args) > 1 else call.kwargs.get("default")
        if name not in self.environment and usual not in (None, ""):
            self.defaulted[name] = None
        if usual is None and _SECRET.search(name) and name not in self.environment:
            return Unknown(f"${{{name}}}", call.line)
        return self.environment.get(name, usual)

    def _of_document(self, name: str, call: Call, first: Value) -> Value:
        """The document that yaml.safe_load, json.load and their like read."""
        if isinstance(first, Call) and first.name == "read":  # of a file's text
            first = first.owner
        opened = isinstance(first, Call) and first.short == "open"
        if name.rsplit(".", 1)[-1] in _LOADS and name.startswith(_OF_FILES) and opened:
            return self._document(next(iter(first.args), None), call)
        if name in _OPENS or (_OF_ITS_OWN.search(name) and self._is_document(first)):
            return self._document(first, call)
        return _of_objects(name, call, first)

    def _is_document(self, path: Value) -> bool:
        """Whether a path names one of the files that is a configuration."""
        last = path.rsplit("/", 1)[-1] if isinstance(path, str) else ""
        return last.endswith(_CONFIGURATIONS) and any(
            one.rsplit("/", 1)[-1] == last for one in self.files
        )

    def _document(self, path: Value, call: Call) -> Value:
        """The document of a YAML or JSON file among the files, the only one if none is named."""
        last = path.rsplit("/", 1)[-1] if isinstance(path, str) else ""
        if not last:
            given = [one for one in self.files if one.endswith(_CONFIGURATIONS)]
            last = given[0].rsplit("/", 1)[-1] if len(given) == 1 else ""
            if last:
                self.taken[last] = None
        name = next((one for one in self.files if one.rsplit("/", 1)[-1] == last), None)
        if not last or name is None:
            if isinstance(path, str):
                self.missing[path] = None
            return Unknown("a configuration that is not among the files", call.line)
        try:
            if name.endswith(".json"):
                return json_value(self.files[name], name)
            return yaml_files.read(self.files[name], name).values
        except Unreadable as error:
            if error.line:  # there the script stops too
                raise
            return Unknown(f"in {name}, which cannot be read", call.line)


def _of_objects(name: str, call: Call, first: Value) -> Value:
    """What a call of a built-in function on an object stands for."""
    if not isinstance(first, Call):
        return call
    if name in ("vars", "asdict", "dataclasses.asdict"):
        return dict(first.kwargs)
    key, usual = (*call.args[1:], None, None)[:2]
    if name == "hasattr" and isinstance(key, str) and isinstance(first, Instance):
        return key in first.kwargs
    if name == "setattr" and isinstance(key, str):
        first.set(key, usual, call.line)
    if name == "getattr" and isinstance(key, str):
        left = usual if len(call.args) > 2 else Unknown(key, call.line)
        return first.kwargs.get(key, left)
    return call


def _field(call: Call) -> Value:
    """The default of a field of a dataclass, of pydantic or of typer."""
    factory = call.kwargs.get("default_factory")
    if isinstance(factory, Function):
        return factory
    if isinstance(factory, Call):
        return {"list": [], "dict": {}}.get(factory.name, Unknown("field", call.line))
    left = Unknown("field", call.line)
    usual = call.kwargs.get("default", next(iter(call.args), left))
    return left if usual is ... else usual
