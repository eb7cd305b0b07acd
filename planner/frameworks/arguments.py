"""Command line arguments of a training script as its own argparse parser would take them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import takewhile
from typing import Any

from cost_models.package_files import table
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.documents.answer import Reason
from planner.frameworks.bash import Argument, ProgramCall
from planner.frameworks.launch_files import GivenValues
from planner.frameworks.read_results import Reading, Refusal, Setting, Unreadable
from planner.frameworks.training_calls import World

MAX_NUMBER = 10**15
# Similarity to a known option from which an unknown one counts as a typo.
MISSPELLING_SIMILARITY = 0.92
MOST_LOOKED_UP = 100  # unknown options, each of which is compared with all known ones
# Refusals that hold for the versions of upstream alone.
_OF_UPSTREAM = re.compile(r" cannot be '.*': it is one of |^no version has all options")
# A tokenizer that upstream does not know is a fork's, whatever its options.
_OWN_TOKENIZER = re.compile(r"^--tokenizer-type cannot be ")
_NEGATIVE = re.compile(r"-\d+$|-\d*\.\d+$")


def known_arguments(package: str) -> dict[str, Any]:
    """arguments.json of a framework: every option of its parser, and the versions that have it."""
    return table(package, "arguments.json")


def option_like(text: str) -> bool:
    """Whether argparse takes the word for an option and not for a value."""
    name = text.partition("=")[0]
    return name.startswith("-") and len(name) > 1 and " " not in name and not _NEGATIVE.match(text)


@dataclass
class Arguments:
    """The given options, the last of each, and the errors that the parser would raise on them.

    own: the program's name if it may add options to the parser's, so that unknown ones are fine.
    asked: options that a reader has looked up; the other known ones have no place in a plan.
    lenient: an option whose value is not in the files gets its default and is listed in `open`.
    vague: ids of the settings whose value is not in the files.
    """

    title: str
    known: dict[str, Any]
    versions: Sequence[str]
    own: str = ""
    settings: list[Setting] = field(default_factory=list)
    unknown: list[Setting] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    lenient: bool = False
    asked: set[str] = field(default_factory=set)
    vague: set[int] = field(default_factory=set)
    given: dict[str, Setting] = field(default_factory=dict)

    def refuse(self, text: str, *names: str, code: str = "framework_unsupported") -> None:
        """Adds a refusal by the framework, placed at the first of these options that was given."""
        setting = next((self.given[name] for name in names if name in self.given), None)
        self.refusals.append(Refusal(reason=Reason(code=code, text=text), setting=setting))

    def assume(self, text: str) -> None:
        if text not in self.assumed:
            self.assumed.append(text)

    # Parsing of the words.

    def take(self, words: Sequence[Argument]) -> None:
        """Parses the words of a command line."""
        position, text = 0, ""
        while position < len(words):
            word = words[position]
            position += 1
            if not option_like(word.text):
                if text and word.known:
                    self.blanks(text, word)
                else:
                    self.stray(word)
                continue
            name, equals, value = word.text.partition("=")
            row = self.known.get(name)
            wanted: Any = (
                "*" if row is None else 0 if row["kind"] == "switch" else row.get("nargs", 1)
            )
            if equals:
                values = [Argument(value, word.file, word.line, word.known)]
            else:
                most = wanted if isinstance(wanted, int) else 1 if wanted == "?" else len(words)
                following = words[position : position + most]
                values = list(takewhile(lambda one: not option_like(one.text), following))
                position += len(values)
            self.option(name, word, values, wanted)
            text = name if row and row.get("type") == "str" and wanted == 1 and values else ""

    def blanks(self, name: str, word: Argument) -> None:
        """Notes a word after an option's string value: bash has split an unquoted value."""
        self.assume(
            f"{name} ({word.file}:{word.line}) has several words, a placeholder or a path without "
            "quotes: the first word is used"
        )

    def stray(self, word: Argument) -> None:
        """Refuses a word that belongs to no option; only notes one whose text is not known."""
        if not word.known:
            self.assume(f"{word.file}:{word.line}: {word.text} is assumed to hold no arguments")
            return
        text = f"{word.text!r} belongs to no option: unrecognized arguments"
        setting = Setting(name=word.text, file=word.file, line=word.line)
        reason = Reason(code="framework_unsupported", text=text)
        self.refusals.append(Refusal(reason=reason, setting=setting))

    def option(self, name: str, word: Argument, values: list[Argument], wanted: Any) -> None:
        texts = tuple(value.text for value in values)
        row = self.known.get(name)
        several = row is not None and wanted not in (0, 1, "?")
        setting = Setting(
            name=name,
            value=texts if several or len(texts) > 1 else next(iter(texts), None),
            file=word.file,
            line=word.line,
        )
        self.settings.append(setting)
        if row is None:
            self.unknown.append(setting)
            if near := self.nearest(name):
                text = f"has no option {name}; the nearest is {near[0]}"
                meant = near[0] if len(near) == 1 else ""
                self.refuse_at(setting, f"{self.title} ({self.span()}) {text}", meant)
            return
        self.given[name] = setting
        if not all(value.known for value in values):
            self.vague.add(id(setting))
        counts = {"*": True, "?": True, "+": bool(texts)}
        if not counts.get(wanted, len(texts) == wanted):
            self.refuse_at(setting, f"{name} takes {self.count(wanted)}, not {len(texts)}")
            if wanted != 0:
                del self.given[name]
            return
        for value in values:
            if value.known and (wrong := self.wrong(row, value.text)):
                self.refuse_at(setting, f"{name} cannot be {value.text!r}: {wrong}")
                del self.given[name]
                return

    def nearest(self, name: str) -> list[str]:
        """The known options that an unknown one may be a slip of, the nearest first."""
        if self.own or len(self.unknown) > MOST_LOOKED_UP:
            return []
        return get_close_matches(name, self.known, 2, MISSPELLING_SIMILARITY)

    def refuse_at(self, setting: Setting, text: str, meant: str = "") -> None:
        """Adds a refusal of one setting; meant: the one option that it may be a slip of."""
        reason = Reason(code="framework_unsupported", text=text)
        self.refusals.append(Refusal(reason=reason, setting=setting, meant=meant))

    def span(self) -> str:
        first, last = self.versions[0], self.versions[-1]
        return first if first == last else f"{first} to {last}"

    @staticmethod
    def count(wanted: Any) -> str:
        if wanted == 0:
            return "no value"
        return "one value" if wanted in (1, "?") else f"{wanted} values"

    @staticmethod
    def wrong(row: dict[str, Any], text: str) -> str:
        """Why the parser rejects a value; empty if it accepts it."""
        if "choices" in row and text not in row["choices"] and not row.get("forks"):
            return f"it is one of {', '.join(row['choices'])}"
        try:
            if row.get("type") == "int" and abs(int(text)) > MAX_NUMBER:
                return f"it is above {MAX_NUMBER}"
            if row.get("type") == "float":
                float(text)
        except ValueError:
            return f"it is not {'an integer' if row['type'] == 'int' else 'a number'}"
        return ""

    # Values of the options.

    def has(self, *names: str) -> bool:
        """Whether one of the options was given; all of them count as looked up."""
        self.mark_read(*names)
        return any(name in self.given for name in names)

    def mark_read(self, *names: str) -> None:
        """Count options as looked up that say nothing of a plan."""
        self.asked.update(names)

    def rename(self, old: str, new: str) -> None:
        """Moves an option to the name under which readers look it up."""
        self.asked.add(old)
        if old in self.given and new not in self.given:
            self.given[new] = self.given.pop(old)

    def say(self, name: str, value: str | None, about: str) -> None:
        """Sets an option that another given option (`about`) implies."""
        self.asked.add(about)
        found = self.given[about]
        self.given[name] = Setting(name=name, value=value, file=found.file, line=found.line)

    def words(self, name: str) -> tuple[str, ...]:
        """The values of an option; empty if it was not given.

        Raises Unreadable if its value is not in the files, unless `lenient`.
        """
        self.asked.add(name)
        setting = self.given.get(name)
        if setting is None or setting.value is None:
            return ()
        if id(setting) in self.vague:
            shown = setting.value if isinstance(setting.value, str) else " ".join(setting.value)
            text = f"{name} is {shown}, which the files do not say: {to_set(shown)}"
            if not self.lenient:
                raise Unreadable(text, setting.file, setting.line)
            if text not in self.open:
                self.open.append(text)
            return ()
        return (setting.value,) if isinstance(setting.value, str) else setting.value

    def vague_in(self, *names: str) -> bool:
        """Whether one of the options was given with a value that is not in the files."""
        return self.has(*names) and any(
            id(self.given[name]) in self.vague for name in names if name in self.given
        )

    def text(self, name: str, default: str = "") -> str:
        return next(iter(self.words(name)), default)

    def integer(self, name: str, default: int = 0) -> int:
        found = self.words(name)
        return int(found[0]) if found else default

    def number(self, name: str, default: float = 0.0) -> float:
        found = self.words(name)
        return float(found[0]) if found else default

    def positive(self, name: str, default: int = 1) -> int:
        """An integer of at least 1; anything else is refused and the default taken."""
        value = self.integer(name, default)
        if value < 1 <= default:
            self.refuse(f"{name} is {value}; at least 1 is needed", name)
            return default
        return value

    def share(self, name: str, default: float) -> float:
        """A number of at least 0 and below 1; anything else is refused, and 0 taken."""
        value = self.number(name, default)
        if not 0 <= value < 1:
            self.refuse(f"{name} is {value}; a share of 0 to 1 is needed", name)
            return 0.0
        return value

    def foreign(self) -> list[Setting]:
        """Unknown options that are not typos of known ones."""
        slips = {one.setting for one in self.refusals}
        return [one for one in self.unknown if one not in slips]

    def upstream(self) -> None:
        """Notes, in one sentence, the options that no parser known here has.

        A fork may take values, and mix options, that upstream refuses: that is said, not refused.
        """
        names = dict.fromkeys(one.name for one in self.foreign())
        own = any(_OWN_TOKENIZER.match(one.reason.text) for one in self.refusals)
        for one in [one for one in self.refusals if _OF_UPSTREAM.search(one.reason.text)]:
            if names or own:
                self.refusals.remove(one)
                self.assume(f"upstream refuses: {one.reason.text}; the fork may have it")
        if names:
            source = self.own or f"a fork of {self.title}"
            self.assume(f"options of {source}, unknown upstream: {', '.join(names)}")

    def unread(self) -> tuple[Setting, ...]:
        """Given options that the framework has and no reader looked up."""
        return tuple(
            one for one in self.settings if one.name in self.known and one.name not in self.asked
        )

    def reading(
        self,
        framework: str,
        model: ModelSpec,
        training: TrainingSpec,
        plan: ParallelPlan,
        world: World,
        before: tuple[Setting, ...],
    ) -> Reading:
        """What was read of the options; before: the settings of the launcher."""
        return Reading(
            framework=framework,
            model=model,
            training=training,
            plan=plan,
            nodes=world.nodes,
            accelerators_per_node=world.per_node,
            settings=(*before, *self.settings),
            unknown=tuple(self.unknown),
            unread=self.unread(),
            assumed=tuple(self.assumed),
            open=tuple(self.open),
            refusals=tuple(self.refusals),
        )

    def versions_of(self, name: str) -> tuple[str, ...]:
        return tuple(self.known[name].get("versions", self.versions))

    def one_version(self) -> None:
        """Refuses the options if no version has all of them; the rarest ones are checked first."""
        common: set[str] = set(self.versions)
        taken: list[str] = []
        for name in sorted(self.given, key=lambda one: len(self.versions_of(one))):
            left = common & set(self.versions_of(name))
            if not left:
                apart = min(taken, key=lambda one: len(common & set(self.versions_of(one))))
                self.refuse(
                    f"no version has all options: {name} is in {self.which(name)}, {apart} in "
                    f"{self.which(apart)}",
                    name,
                )
                return
            common = left
            taken.append(name)

    def which(self, name: str) -> str:
        found = self.versions_of(name)
        return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def to_set(text: str, otherwise: str = "write it out") -> str:
    """How to give the shell variables and positional parameters in a word of a script."""
    found = re.findall(r"\$(?:\{(?:oc\.env:)?)?(\w+)", text, re.ASCII)
    for inner in re.findall(r"\$\(\((.*?)\)\)", text):  # names in arithmetic need no sign
        found += re.findall(r"\b[A-Za-z_]\w*", inner, re.ASCII)
    names = dict.fromkeys(found)
    return ", ".join(f"--set {name}=..." for name in names) or otherwise


def of_call(
    title: str,
    package: str,
    launch: ProgramCall,
    given: GivenValues | None = None,
    more: dict[str, Any] | None = None,
) -> Arguments:
    """Parses the arguments of a call with the stored list of the parser's options.

    given: the user's options, which override those of the call.  more: options that the program
    adds to the parser's.
    """
    document = known_arguments(package)
    program = launch.program.text.rsplit("/", 1)[-1]
    own = "" if re.match("pretrain_(gpt|hybrid|mamba)", program) else program
    known = {**document["flags"], **(more or {})}
    result = Arguments(title, known, tuple(document["versions"]), own)
    added = [one for one in (given or GivenValues()).settings() if option_like(one.name)]
    result.take([_with_dashes(word, known) for word in launch.arguments])
    result.take(
        [Argument(text, one.file, one.line) for one in added for text in _words_of(one) if text]
    )
    result.one_version()
    return result


def _with_dashes(word: Argument, known: Mapping[str, Any]) -> Argument:
    """An option with dashes for underscores, as forks spell them (Megatron-LLM), if that is one."""
    name, equals, value = word.text.partition("=")
    dashed = name.replace("_", "-")
    if not name.startswith("--") or name in known or dashed not in known:
        return word
    return replace(word, text=f"{dashed}{equals}{value}")


def _words_of(setting: Setting) -> tuple[str, str]:
    return setting.name, setting.value if isinstance(setting.value, str) else ""
