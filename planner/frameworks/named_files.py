"""Files that a launch names and that lie beside it: configurations, settings, scripts, programs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from planner.frameworks.bash import evaluate
from planner.frameworks.pinned_releases import NAME as PINS
from planner.frameworks.pinned_releases import pins_near
from planner.frameworks.python import hydra
from planner.frameworks.read_results import Unreadable
from planner.frameworks.training_calls import scripts

# Folders above the first file that may hold what it names, where no repository ends before.
_MOST_ABOVE = 3
_MOST_NAMES = 200
_MOST_ROUNDS = 4
_KINDS = (".yaml", ".yml", ".json", ".toml", ".sh", ".bash", ".env")
_BETWEEN = re.compile(r"[^\w./~${}+-]+")
_LONGEST = 300  # characters of a path
_SOURCED = re.compile(r"(?:^|[;&|]\s*|\s)(?:source|\.)\s+[\"']?([^\s\"';&|]+)", re.MULTILINE)
# The folder of a model, whose shapes are in its config.json; a dot: the launch's own.
_MODEL = re.compile(
    r"""(?<!\w)(?<!\w-)(?:model_name_or_path|base_model|model(?:[._]path)?|pretrain(?:ed_model)?)"""
    r"""["']?(?:\s*[:=]|\s)\s*["']?([\w./~${}+-]*/[\w./~${}+-]*|\.(?=["'\s]|$))"""
)
_CONFIG = ["config.json"]
_CONFIG_OF_TUNE = re.compile(r"--config[= ]([\w/-]+)(?![\w./-])")
# torchtitan's option for a registry module, which it imports.
_MODULE = re.compile(r"--module[= ](\w+)\b(?!\.)")
# Options of a Megatron, whose defaults are in the checkout that has its program.
_OF_MEGATRON = "--num-attention-heads"
_OF_FACTORY = "finetuning_type"
FACTORY_FILE = "data_args.py"  # LLaMA-Factory's, with the defaults of what describes data
_OWN_ARGUMENTS = ("megatron/training/arguments.py", "megatron/arguments.py")
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_DATA = (".yaml", ".yml", ".toml")
# Folders in which a repository keeps its configurations, where a name has no folder.
_FOLDERS = ("config", "configs", "conf")
# A long name with a number (config32b-qwen2.5.yaml) is rarely that of another file, but for those
# that every repository has: deepspeed_zero3.yaml.
_OF_ITS_OWN = re.compile(r"^(?!.*(?:zero|stage|fsdp|ds_config|deepspeed))(?=.*\d).{12,}$", re.I)
_ENTERED = re.compile(r"(?:^|[;&]\s*)cd\s+([\w./-]+)", re.MULTILINE)
PYTHON = (".py", ".ipynb")
# What scripts of transformers' Trainer are known by, whose modules and configurations are read too.
_TRAINS = re.compile(r"\b(?:transformers|trl|peft|unsloth|(?:pytorch_)?lightning)\b")
# And modules with their options.
_CONFIGURES = re.compile(r"\b(?:yaml\.\w*load|json\.load|ArgumentParser|dataclass)\b")
# And modules of constants.
_CONSTANTS = re.compile(r"^[A-Z][A-Z0-9_]+(?:: *[\w\[\], .]+)? *= *[\"'{\d]", re.MULTILINE)
# torchtitan's programs, and DeepSpeed's configuration as a mapping.
_ENGINE = re.compile(r"torchtitan|[\"']train_micro_batch_size_per_gpu[\"']")
_IMPORTED = re.compile(
    r"^\s*(?:from\s+\.*([\w.]*)\s+import\s+\(?([\w, ]*)|import\s+([\w.]+))", re.MULTILINE
)
# In quotes, or in an example of the program's call.
_CONFIGURED = re.compile(r"""(?:["']|--[\w-]*conf[\w-]*[= ]+)([\w./-]+\.(?:ya?ml|json|toml))\b""")


class NamedFile(NamedTuple):
    """A file that a launch names: where it lies, and its text."""

    path: Path
    text: str


def _near(roots: Sequence[Path], found: Mapping[str, NamedFile]) -> list[Path]:
    """Where to look: modules lie beside their program, Hydra's groups beside the first YAML."""
    beside = dict.fromkeys(
        one.path.parent for name, one in found.items() if name.endswith((*PYTHON, *_DATA))
    )
    return [roots[0], *(one for one in beside if one not in roots), *roots[1:]]


def named_files(
    files: Mapping[str, str],
    paths: Sequence[str],
    most_files: int,
    most_bytes: int,
    programs: bool = False,
) -> dict[str, NamedFile]:
    """Files that these name and that are not among them, by the names that readers look for.

    paths: where the files lie, the launch first.  Only files of its repository are opened, or of
    its folder and those above it where it is in none; at most so many and so large with the given.
    programs: of Python too, which a launch starts.
    """
    folder = Path(paths[0]).resolve().parent
    roots = _roots(folder)
    known, found = dict(files), dict[str, NamedFile]()
    seen = {Path(path).resolve() for path in paths}
    for _ in range(_MOST_ROUNDS):
        near = _near(roots, found)
        existing = dict.fromkeys(_existing(_names(known, programs), near))
        fresh = [path for path in existing if path not in seen]
        for path in fresh:
            name, text = _read(path, known, most_bytes, programs)
            if text is not None and len(known) < most_files:
                known[name] = text
                found[name] = NamedFile(path, text)
        seen |= set(fresh)
        if not fresh:
            break
    return {**found, **_pins(roots)} if PINS not in known and len(known) < most_files else found


def _read(
    path: Path, known: Mapping[str, str], most_bytes: int, programs: bool
) -> tuple[str, str | None]:
    """The name by which readers look a file up, and its text; None where it is not to be read."""
    # That is the last part of its path; Hydra's groups repeat it.
    name = path.name if path.name not in known else f"{path.parent.name}/{path.name}"
    text = _text(path, most_bytes - sum(map(len, known.values())))
    wanted = text is not None and name not in known and (programs or _is_wanted(name, text))
    return name, text if wanted else None


def _pins(roots: Sequence[Path]) -> dict[str, NamedFile]:
    """The releases that a file of these folders pins, as a file of their own."""
    pins = pins_near(roots)
    return {PINS: NamedFile(*pins)} if pins is not None else {}


def _roots(folder: Path) -> list[Path]:
    """The folder and those above it, up to the repository's or as many as are searched."""
    above = [folder, *folder.parents]
    ends = next((i for i, one in enumerate(above) if (one / ".git").exists()), None)
    return above[: (min(_MOST_ABOVE, len(above) - 2) if ends is None else ends) + 1]


def _names(files: Mapping[str, str], programs: bool) -> list[str]:
    """Names of files in the words of the calls and in configurations, as they are written."""
    found = chain(_called(files), _stated(files), _programs(files) if programs else ())
    return list(dict.fromkeys(found))[:_MOST_NAMES]


def _called(files: Mapping[str, str]) -> Iterator[str]:
    # What bash does not read leaves out, so that a round with new ones finds the same again.
    shell = {
        name: text for name, text in files.items() if not name.endswith((*PYTHON, *_KINDS[:4]))
    }
    for name in scripts(files):
        text = _COMMENT.sub("", files[name])
        yield from _SOURCED.findall(text)
        try:
            outcome = evaluate(shell, name)
        except Unreadable:
            yield from _paths(text)
            continue
        yield from outcome.missing
        for call in outcome.launches:
            as_module = call.before and call.before[-1].text in ("-m", "--module")
            yield from _of_program(call.program.text, bool(as_module), text)
            yield from _of_words([word.text for word in (*call.before, *call.arguments)])
            variables = call.environment.items()
            folders = (value for name, value in variables if "MODEL" in name)
            yield from _models(" ".join(f"model {folder}" for folder in folders))


def _of_program(program: str, as_module: bool, text: str) -> Iterator[str]:
    """The file of a program, also in folders that the script enters and in src."""
    module = re.fullmatch(r"\w+(\.\w+)*" if as_module else r"\w+(\.\w+)+", program)
    module = module if not program.endswith(PYTHON) else None
    path = f"{program.replace('.', '/')}.py" if module else program
    if path.endswith(PYTHON) and _OF_MEGATRON in text:
        above = path.rpartition("/")[0]
        yield from (f"{above}/{one}".lstrip("/") for one in _OWN_ARGUMENTS)
    if path.endswith(PYTHON):
        inside = (one.rstrip("/") for one in _ENTERED.findall(text))
        yield from (*(f"{one}/{path}" for one in inside), path, f"src/{path}")


def _of_words(words: Sequence[str]) -> Iterator[str]:
    """The files among the words of a call, and those that its options stand for."""
    line = " ".join(words)
    for word in words:
        yield from _paths(word)
    yield from _models(line)
    yield from hydra.in_groups(words)
    yield from (f"{name}.py" for name in _MODULE.findall(line))
    if "tune" in words:
        yield from (f"recipes/configs/{name}.yaml" for name in _CONFIG_OF_TUNE.findall(line))
    if "-d" in words[:-1]:  # GPT-NeoX's folder of the configurations that follow
        folder = words[words.index("-d") + 1]
        yield from (f"{folder}/{word}" for word in words if word.endswith(_DATA))


def _is_wanted(name: str, text: str) -> bool:
    """Whether a program that a script starts makes a Trainer, or is torchtitan's."""
    wanted = _TRAINS.search(text) or _CONFIGURES.search(text) or _ENGINE.search(text)
    wanted = wanted or _CONSTANTS.search(text)
    return not name.endswith(PYTHON) or bool(wanted) or "import" not in text


def _of_python(text: str) -> Iterator[str]:
    """The modules of a script that may lie beside it, and the configurations that it names."""
    yield from _CONFIGURED.findall(text)
    yield from hydra.named(text)
    for module, names, alone in _IMPORTED.findall(text):
        base = (module or alone).replace(".", "/")
        inside = (one.strip() for one in names.split(","))
        yield from (f"{base}.py", *(f"{base}/{one}.py".lstrip("/") for one in inside if one))


def _programs(files: Mapping[str, str]) -> Iterator[str]:
    """The Python files that calls start."""
    for name in scripts(files):
        try:
            launches = evaluate(files, name).launches
        except Unreadable:
            continue
        yield from (call.program.text for call in launches if call.program.text.endswith(".py"))


def _stated(files: Mapping[str, str]) -> Iterator[str]:
    if any(_OF_FACTORY in text for text in files.values()):
        yield from (f"src/{one}/hparams/{FACTORY_FILE}" for one in ("llamafactory", "llmtuner"))
    python = [text for name, text in files.items() if name.endswith(PYTHON)]
    trains = any(map(_TRAINS.search, python))
    for name, text in files.items():
        if name.endswith(PYTHON) and (
            _TRAINS.search(text) or (trains and _CONFIGURES.search(text))
        ):
            yield from _of_python(text)
        if name.endswith((*_DATA, ".json")):
            yield from _models(_COMMENT.sub("", text))
        if name.endswith(_DATA):
            yield from _paths(_COMMENT.sub("", text))
            yield from hydra.named(text) if "defaults:" in text else ()


def _models(text: str) -> Iterator[str]:
    """The files with the shapes of models that are folders."""
    for name in _MODEL.findall(text):
        if len(name) < _LONGEST:
            yield f"{name.rstrip('/')}/config.json"


def _paths(text: str) -> list[str]:
    words = _BETWEEN.split(text)
    return [word for word in words if len(word) < _LONGEST and word.endswith(_KINDS)]


def _existing(names: Iterable[str], roots: Sequence[Path]) -> Iterator[Path]:
    """For each name the file with most of its folders, in the nearest folder that has it."""
    top = roots[-1].resolve()
    for name in names:
        tried = (one.resolve() for one in _candidates(name, roots))
        path = next((one for one in tried if one.is_relative_to(top) and one.is_file()), None)
        if path is not None:
            yield path


def _candidates(name: str, roots: Sequence[Path]) -> Iterator[Path]:
    """Where a file of that name may be: by its folders, then in those of configurations."""
    for tail, near in _tails(name, roots):
        for root in near:
            yield root.joinpath(*tail)
    last = name.rsplit("/", 1)[-1]
    if name.endswith(_DATA) and (last == name or _OF_ITS_OWN.search(last)):
        for root in roots:
            for folder in _FOLDERS:
                yield root / folder / last


def _tails(name: str, roots: Sequence[Path]) -> Iterator[tuple[list[str], Sequence[Path]]]:
    """The ends of a path, the longest first, and the folders that may hold them.

    Where its first folders are variables or aren't here, one more folder must agree; without any
    it must lie beside the launch, as a model's config.json must, which others have too.
    """
    parts = [one for one in re.split(r"/+", name) if one not in ("", ".", "..", "~")]
    said = next((i for i, one in enumerate(reversed(parts)) if "$" in one), len(parts))
    for count in range(said, 0, -1):
        tail = parts[len(parts) - count :]
        whole = count == len(parts)
        if tail == _CONFIG:
            yield tail, roots[:1] if whole else ()
        else:
            yield tail, roots if count > 1 or whole else roots[:1]


def _text(path: Path, left_bytes: int) -> str | None:
    """The text of a file of at most so many bytes; None if it is larger or no text."""
    try:
        data = path.read_bytes() if path.stat().st_size <= left_bytes else b"\0"
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\0" in text else text.replace("\r\n", "\n")
