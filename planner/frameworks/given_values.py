"""Settings of a launch, looked up by name and converted to the types that they must have."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from pydantic import ValidationError

from planner.documents.answer import Reason
from planner.frameworks.arguments import to_set
from planner.frameworks.bash import Argument, ProgramCall, evaluate
from planner.frameworks.read_results import Refusal, Setting, Unreadable

MOST = 100_000_000
LARGEST = 1e15  # of numbers that are not counts, such as the base of rotary positions
DEGREE = 1_000_000  # the largest degree that a plan can hold
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_ABSENT = ("null", "None")
# File endings of shell scripts.
SCRIPTS = (".sh", ".slurm", ".sbatch", ".bash")


# Options of launchers with numbers of processes and machines.
_COUNTS = re.compile(r"--?(n|num[-_])(proc(esses)?([-_]per[-_]node)?|nodes|machines|gpus)")


class Values:
    """Settings by name, and what was found about them.

    asked: every name that was looked up.  assumed: sentences on what the files leave open; settings
    of one launch may share them.  refusals: where the framework itself would stop.
    """

    def __init__(
        self, settings: Mapping[str, Setting], file: str, assumed: list[str] | None = None
    ) -> None:
        self.settings, self.file = settings, file
        self.asked: set[str] = set()
        self.assumed = [] if assumed is None else assumed
        self.refusals: list[Refusal] = []

    def assume(self, text: str) -> None:
        self.assumed.append(text)

    def refuse(self, text: str, name: str = "", code: str = "framework_unsupported") -> None:
        """Adds a refusal by the framework, placed at the setting of that name."""
        self.refuse_at(self.settings.get(name), text, code)

    def refuse_at(
        self, setting: Setting | None, text: str, code: str = "framework_unsupported"
    ) -> None:
        self.refusals.append(Refusal(reason=Reason(code=code, text=text), setting=setting))

    def has(self, *names: str) -> bool:
        """Whether one of the names is there, with a value other than null."""
        return self._find(names) is not None

    def text(self, *names: str) -> str | None:
        """The value of the first name that is there; a switch is "true"."""
        found = self._find(names)
        if found is None:
            return None
        if isinstance(found.value, tuple):
            raise self.fault(names, "takes one value")
        return "true" if found.value is None else found.value

    def integer(
        self, *names: str, default: int | None = None, least: int = 1, most: int = MOST
    ) -> int:
        """A whole number; required if there is no default."""
        text = self.text(*names)
        if text is None and default is not None:
            return default
        if text is None:
            raise Unreadable(f"{names[0]} is missing", self.file)
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1
        if not least <= number <= most:
            raise self.fault(
                names, f"must be a whole number from {least} to {most}, got {text[:80]!r}"
            )
        return number

    def number(self, *names: str, default: float | None = None) -> float:
        """A positive number; required without a default."""
        text = self.text(*names)
        if text is None and default is not None:
            return default
        if text is None:
            raise Unreadable(f"{names[0]} is missing", self.file)
        try:
            number = float(text)
        except ValueError:
            number = 0.0
        if not 0 < number < LARGEST:
            raise self.fault(names, f"must be a positive number, got {text[:80]!r}")
        return number

    def probability(self, *names: str) -> float:
        """A number of at least 0 and below 1, such as a dropout; 0 if there is none."""
        text = self.text(*names) or "0"
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0.0 <= number < 1.0:
            raise self.fault(names, f"must be from 0 to below 1, got {text[:80]!r}")
        return number

    def boolean(self, *names: str, default: bool = False) -> bool:
        text = self.text(*names)
        if text is None:
            return default
        if text.lower() not in _TRUTH:
            raise self.fault(names, f"must be true or false, got {text[:80]!r}")
        return _TRUTH[text.lower()]

    def choice(self, *names: str, choices: Iterable[str], default: str | None = None) -> str:
        """One of the choices, compared without case."""
        text, known = self.text(*names), {one.lower(): one for one in choices}
        if text is None and default is not None:
            return default
        if text is None:
            raise Unreadable(f"{names[0]} is missing", self.file)
        if text.lower() not in known:
            raise self.fault(
                names, f"must be one of {', '.join(known.values())}, got {text[:80]!r}"
            )
        return known[text.lower()]

    def fault(self, names: Sequence[str], text: str) -> Unreadable:
        """An error with the setting's name and place."""
        found = self._find(names)
        if found is None:
            return Unreadable(f"{names[0]} {text}", self.file)
        return Unreadable(f"{found.name} {text}", found.file, found.line)

    def _find(self, names: Sequence[str]) -> Setting | None:
        self.asked.update(names)
        found = (self.settings.get(name) for name in names)
        return next((one for one in found if one is not None and one.value not in _ABSENT), None)


class LaunchValues(Values):
    """Settings that a script gives; one whose value the files leave open cannot be looked up."""

    def text(self, *names: str) -> str | None:
        text = super().text(*names)
        if text is not None and "$" in text:
            raise self.fault(names, f"is {text}, which the files do not say: {to_set(text)}")
        return text

    def name_in(self, *names: str) -> str:
        """The last part of a path, which alone must be in the files; "" without one."""
        return self.path(*names).rstrip("/").rsplit("/", 1)[-1]

    def path(self, *names: str) -> str:
        """A path whose folders the files may leave open; "" without one."""
        text = Values.text(self, *names) or ""
        if "$" in text.rstrip("/").rsplit("/", 1)[-1]:
            self.text(*names)  # raises
        return text


def launch_by(
    files: Mapping[str, str], launcher: str, program: str = "", assumed: list[str] | None = None
) -> ProgramCall | None:
    """The last call of a program by a launcher in the scripts; None if there is no script.

    program: the end of the program's path.  assumed: is told where calls differ.  Raises Unreadable
    if there is no call.
    """
    scripts = [name for name in files if name.endswith(SCRIPTS)]
    if not scripts:
        return None
    first = next(iter(files))
    main = "launch.sh" if "launch.sh" in scripts and first not in scripts else scripts[0]
    launches = [
        one
        for one in evaluate(files, main).launches
        if one.launcher == launcher and one.program.text.endswith(program)
    ]
    if not launches:
        what = f"no call of {launcher} {program}".rstrip()
        raise Unreadable(f"{what} in {main}{_calls_instead(files, main)}")
    several = len(dict.fromkeys(map(_words, launches)))
    if several > 1 and assumed is not None:
        assumed.append(f"of {several} calls of {launcher} in {main} the last one is read")
    return launches[-1]


def _calls_instead(files: Mapping[str, str], main: str) -> str:
    """What a script calls instead of the program that is looked for."""
    names = [one.program.text.rsplit("/", 1)[-1][:80] for one in evaluate(files, main).launches]
    return f", which calls {', '.join(dict.fromkeys(names[:6]))}" if names else ""


def _words(launch: ProgramCall) -> tuple[str, ...]:
    return tuple(word.text for word in (*launch.before, launch.program, *launch.arguments))


def launcher_options(
    words: Sequence[Argument], assumed: list[str], switches: Iterable[str] = ()
) -> list[Setting]:
    """The options of a launcher; numbers of processes that the files leave open are left out."""
    found = options(words, switches)
    open_ones = [one for one in found if _COUNTS.fullmatch(one.name) and "$" in str(one.value)]
    for one in open_ones:
        assumed.append(f"{one.name} is {one.value}, which the files do not say: by the cluster")
    return [one for one in found if one not in open_ones]


def options(words: Sequence[Argument], switches: Iterable[str] = ()) -> list[Setting]:
    """The options of a command line, each with the words up to the next one, or `--name=value`.

    switches: names, without dashes, that take no value.
    """
    found: list[Setting] = []
    for word in words:
        dashed = word.text.startswith("-") and not word.text[1:2].isdigit()
        if dashed:
            name, equals, value = word.text.partition("=")
            given = value if equals else None
            found.append(Setting(name=name, value=given, file=word.file, line=word.line))
        elif found and found[-1].name.lstrip("-").replace("-", "_") not in switches:
            last = found.pop()
            if last.value is None:
                values: str | tuple[str, ...] = word.text
            else:
                kept = (last.value,) if isinstance(last.value, str) else last.value
                values = (*kept, word.text)
            found.append(last.model_copy(update={"value": values}))
    return found


def malformed(error: ValidationError, file: str) -> Unreadable:
    """The validation error of a model, training or plan, as an error in the files."""
    first = error.errors(include_url=False, include_context=False)[0]
    place = "".join(f"{part}: " for part in first["loc"])
    what = first["msg"].removeprefix("Value error, ")
    return Unreadable(f"cannot be planned: {place}{what}", file)


def invalid(error: ValidationError, file: str, line: int = 0) -> Unreadable:
    """The validation error of a model, training or plan, as that of a launch."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return Unreadable(f"{where}: {first['msg']}" if where else first["msg"], file, line)


def hint(name: str, names: Iterable[str]) -> str:
    """The known names close to an unknown one, as the end of a sentence; "" without any."""
    close = difflib.get_close_matches(name[:100], list(names), n=3, cutoff=0.7)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def hints(unknown: Iterable[Setting], names: Iterable[str]) -> list[str]:
    """Notes on unknown keys that are ignored, with the names that may have been meant."""
    return [
        f"{one.name} is unknown and changes nothing{hint(one.name.rpartition('.')[2], names)}"
        for one in unknown
    ]
