"""The files of a launch, and the framework whose launch they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cost_models.catalog.names import UnknownName
from planner import frameworks
from planner.documents.problems import Problem, RequestError, join, refuse, shown
from planner.frameworks import (
    stated_methods,
    stated_values,
    training_calls,
    unread_trainers,
    yaml_files,
)
from planner.frameworks.base import Framework
from planner.frameworks.bash import cut_commands
from planner.frameworks.bash_writer import parts
from planner.frameworks.config_files import json_value, toml_table
from planner.frameworks.job_manifests import scripts_of_jobs
from planner.frameworks.launch_files import GivenValues, LaunchFiles, given_with
from planner.frameworks.named_files import PYTHON, named_files
from planner.frameworks.read_results import Reading, Unreadable

MOST_FILES = 32
# Of all files together, in bytes.
MOST_BYTES = 1 << 20


# Programs that load a model with Unsloth if an option says so, and that option.
_USES_UNSLOTH = re.compile(r"^\s*(if|elif) [^\n]*\buse_unsloth\b", re.MULTILINE)
_SWITCHES_ON = re.compile(
    r"--use_unsloth[= \t]+[\"']?([Tt]rue|1)\b|^use_unsloth:\s*true", re.MULTILINE
)


def files_at(paths: Sequence[str]) -> dict[str, str]:
    """The text of files by their names, the launch script first.

    A name is the path as seen from the folder of the first file, or the last part of the path
    where the file lies elsewhere.  Raises RequestError.
    """
    if len(paths) > MOST_FILES:
        raise refuse("/files", "length", f"at most {MOST_FILES} files, got {len(paths)}")
    files: dict[str, str] = {}
    left = MOST_BYTES
    for path in map(Path, paths):
        try:
            with path.open("rb") as file:
                data = file.read(left + 1)
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
            why = getattr(error, "strerror", None) or error
            raise refuse("/files", "no_file", f"cannot read {shown(str(path))!r}: {why}") from None
        left -= len(data)
        folder = Path(paths[0]).parent
        name = path.relative_to(folder) if path.is_relative_to(folder) else Path(path.name)
        if left < 0:
            raise _too_large()
        if name.as_posix() in files:
            detail = f"two files are called {shown(name.as_posix())}"
            raise refuse("/files", "duplicate_key", detail)
        try:
            files[name.as_posix()] = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise _no_text(name.as_posix(), "is not UTF-8 text") from None
    return checked(files)


def launch_at(paths: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The text of files by their names, and of files that these name and that lie near.

    The Python files that they start are among these where no framework knows the launch without
    them.  A script that unpacks a bundle is that bundle.  Second: where all of them lie, in the
    same order.  Raises RequestError.
    """
    given = files_at(paths)
    files, places = dict[str, str](), list[str]()
    for (name, text), path in zip(given.items(), paths, strict=True):
        own = {part: one for part, one in parts(text).items() if part not in files | given}
        for part, one in (own or {name: text}).items():
            files[part] = one
            places.append(path)
    scripts = scripts_of_jobs(files)
    found = named_files(scripts, places, MOST_FILES, MOST_BYTES)
    if not _known_by({**scripts, **{name: one.text for name, one in found.items()}}):
        found = named_files(scripts, places, MOST_FILES, MOST_BYTES, programs=True)
    texts = files | {name: one.text for name, one in found.items()}
    return texts, [*places, *(str(one.path) for one in found.values())]


def checked(files: Mapping[str, str]) -> dict[str, str]:
    """The files, checked for their size and for bytes that no script has.  Raises RequestError."""
    if not 1 <= len(files) <= MOST_FILES:
        raise refuse("/files", "length", f"1 to {MOST_FILES} files, got {len(files)}")
    if sum(len(text) for text in files.values()) > MOST_BYTES:
        raise _too_large()
    for name, text in files.items():
        before, zero, _ = text.partition("\0")
        if zero:
            raise _no_text(name, f"line {before.count(chr(10)) + 1} has a zero byte")
    # Lines may end as on Windows: bash would fail on them, but their meaning is plain.
    return {name: text.replace("\r\n", "\n") for name, text in files.items()}


def launch_files(files: Mapping[str, str], given: GivenValues | None = None) -> LaunchFiles:
    """The files with the given values, jobs by the scripts that they run.  Raises RequestError."""
    known = LaunchFiles(scripts_of_jobs(checked(files)), given)
    problems = [
        Problem(
            pointer=join("/set", name),
            code="unknown_name",
            detail=f"no file has a variable {shown(name)!r}",
            did_you_mean=tuple(nearest),
        )
        for name, nearest in known.given.unused(known)
    ]
    if problems:
        raise RequestError(problems)
    return known


def _too_large() -> Exception:
    return refuse("/files", "too_large", f"all files together have at most {MOST_BYTES:,} bytes")


def _no_text(name: str, detail: str) -> Exception:
    return refuse(join("/files", name), "not_text", detail)


def framework_of(files: Mapping[str, str], named: str | None) -> Framework:
    """The framework that is named, or else the one that recognises the files as its own.

    Raises RequestError where there is none, where it has no reader, or where several do.
    """
    if named is not None:
        try:
            framework = frameworks.get(named)
        except UnknownName as error:
            raise refuse(
                "/framework", "unknown_name", f"no framework {shown(named)!r}", named,
                did_you_mean=error.nearest,
            ) from None  # fmt: skip
        if framework.read is None:
            detail = f"{framework.title} cannot be read: {framework.no_reader}"
            raise refuse("/framework", "no_reader", detail)
        return framework
    if why := unread_trainers.known_trainer(files, first=True) or unread_trainers.idle(files):
        raise refuse("/files", "no_framework", why)
    readable, found = _readable(), _known_by(files)
    found = _of_programs(_without_optional_unsloth(found, files), files)
    if len(found) == 1:
        return found[0]
    names = ", ".join(one.name for one in found or readable)
    if found:
        detail = f"a launch of {names}: name one as the framework"
        raise refuse("/files", "no_framework", detail)
    raise _none_found(readable, names, files)


def _without_optional_unsloth(found: list[Framework], files: Mapping[str, str]) -> list[Framework]:
    """The frameworks that know a launch, less Unsloth where only an option turns it on."""
    if {one.name for one in found} != {"accelerate", "unsloth"}:
        return found
    optional = any(map(_USES_UNSLOTH.search, files.values()))
    on = any(map(_SWITCHES_ON.search, files.values()))
    return [one for one in found if one.name == ("unsloth" if on else "accelerate") or not optional]


def _of_programs(found: list[Framework], files: Mapping[str, str]) -> list[Framework]:
    """The one of these whose launch a Python script is, whatever lies beside it; else all."""
    if len(found) < 2 or not next(iter(files)).endswith(PYTHON):
        return found
    programs = {name: text for name, text in files.items() if name.endswith(PYTHON)}
    own = [one for one in found if one.recognises(programs)]
    return own if len(own) == 1 else found


def _readable() -> list[Framework]:
    return [one for one in map(frameworks.get, frameworks.FRAMEWORKS) if one.read is not None]


def _known_by(files: Mapping[str, str]) -> list[Framework]:
    """The frameworks that recognise the files as a launch of theirs."""
    return [one for one in _readable() if one.recognises(files)]


def _none_found(
    readable: Sequence[Framework], names: str, files: Mapping[str, str]
) -> RequestError:
    """The error of files that no framework knows as its own: what is known of them."""
    detail = f"no launch of a framework that can be read ({names})"
    first, text = next(iter(files.items()))
    if first in training_calls.scripts(files) and (cut := next(cut_commands(text), None)):
        line = text.count("\n", 0, cut[0]) + 1
        return refuse(join("/files", first), "unreadable", f"line {line}: {cut[1]}; {detail}")
    if trainer := unread_trainers.known_trainer(files):
        return refuse("/files", "no_framework", f"{trainer}; {detail}")
    unknown = Problem(pointer="/files", code="no_framework", detail=detail)
    if broken := list(_broken(files)):
        return RequestError([*broken, unknown])
    # The problems that stopped the readers, each of them once; a framework that does not know the
    # files as its own would miss its own names in them.
    stopped = {
        problem.detail: problem
        for framework in readable
        for problem in _stopped(framework, files)
        if problem.detail.startswith("line ") and " is missing" not in problem.detail
    }
    called = unread_trainers.called(files) or unread_trainers.stated(files)
    said = [Problem(pointer="/files", code="no_framework", detail=called)] if called else []
    return RequestError([*said, *stopped.values(), unknown])


def _broken(files: Mapping[str, str]) -> Iterator[Problem]:
    """The JSON, YAML and TOML files that break at some place: no framework may know them."""
    for name, text in files.items():
        try:
            if name.endswith((".json", ".ipynb")):
                json_value(text, name)
            elif name.endswith(".toml"):
                toml_table(text, name)
            elif name.endswith((".yaml", ".yml")):
                yaml_files.read(text, name)
        except Unreadable as error:
            if error.line:
                yield from _unreadable(error).problems


def _stopped(framework: Framework, files: Mapping[str, str]) -> tuple[Problem, ...]:
    assert framework.read is not None
    try:
        framework.read(files, 1)
    except Unreadable as error:
        return _unreadable(error).problems
    except RequestError as error:
        return error.problems
    return ()


def reading_of(framework: Framework, files: Mapping[str, str], accelerators: int | None) -> Reading:
    """The reading of the files.  Raises RequestError with the file and line that cannot be read."""
    assert framework.read is not None
    try:
        found = framework.read(files, accelerators)
        passed_over = [
            *given_with(files).model_notes,
            *stated_values.left_out(files, found),
            *stated_methods.unsaid(files, found),
        ]
        return found.model_copy(update={"assumed": (*found.assumed, *passed_over)})
    except Unreadable as error:
        named = framework.title in error.text or framework.name in error.text
        raise _unreadable(error, "" if named else f" (read as {framework.title})") from None


def _unreadable(error: Unreadable, of: str = "") -> RequestError:
    pointer = join("/files", error.file) if error.file else "/files"
    where = f"line {error.line}: " if error.line else ""
    return refuse(pointer, "unreadable", f"{where}{error.text}{of}")
