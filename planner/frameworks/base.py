"""The interface of a framework: its rules, its names for a plan's fields, and a writer.

A framework is a module that builds one `Framework`, and one line in the registry.  Its writer
returns a `Bundle`: the files, and their flags with a one-line reason each (`why`), so that the
reasons survive in formats without comments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial, wraps
from typing import Any, Literal, ParamSpec

import numpy as np

from cost_models.fields import Spec
from cost_models.package_files import table
from cost_models.plans import AttentionKernel, ParallelPlan, Plans, RuntimeName
from cost_models.spec import ModelSpec
from cost_models.spec.training import Loss
from planner.constraints import RULES, BoolArray, Context, Level, Rule, violations
from planner.documents.answer import Reason
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest, Value
from planner.frameworks import devices, restrictions
from planner.frameworks.model_parts import unsaid
from planner.frameworks.read_results import Reading


@dataclass(frozen=True)
class Field:
    """The options by which a framework sets one field of the plan, or why it has none.

    names: the framework's options, environment variables or keys, as the writer spells them;
    empty if it has none.  note: a condition, or the reason why it has none.  only: the values that
    the framework leaves where the field has an effect, the usual one first; the rule that refuses
    the others, the axis of the search and the default are made from them.  Empty: every value, or
    those that its rules on several fields leave.
    """

    names: tuple[str, ...] = ()
    note: str = ""
    only: tuple[Value, ...] = ()

    @property
    def supported(self) -> bool:
        return bool(self.names)


def says(*names: str, note: str = "", only: tuple[Value, ...] = ()) -> Field:
    """The field is set by these options, to one of these values."""
    return Field(names, note, only)


def cannot(note: str, *only: Value) -> Field:
    """The framework has no option for the field, for the reason in the note: only these values."""
    return Field((), note, only)


def fields(package: str, **only: Iterable[Value]) -> dict[str, Field]:
    """What fields.json of a framework's package says of fields of a plan.

    only: the values that are left of a field, where a table of the package knows them.
    """
    rows = table(package, "fields.json")["fields"]
    return {
        name: Field(
            tuple(row.get("names", ())),
            row.get("note", ""),
            tuple(
                tuple(value) if isinstance(value, list) else value
                for value in only.get(name, row.get("only", ()))
            ),
        )
        for name, row in rows.items()
    }


class Flag(Spec):
    """One option of a launch line, one environment variable, or one key of a document.

    value: None for a switch; several words for an option that takes several.
    variable: the environment variable of the script that replaces the value; empty: none.
    """

    name: str
    value: str | tuple[str, ...] | None = None
    why: str
    group: str = ""
    variable: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """The option and its values as separate words, unquoted."""
        if self.value is None:
            return (self.name,)
        return (self.name, *((self.value,) if isinstance(self.value, str) else self.value))


def flag(group: str, name: str, value: object, why: str, variable: str = "") -> Flag:
    """An option with a value; a tuple stands for several words."""
    words = tuple(map(str, value)) if isinstance(value, tuple) else str(value)
    return Flag(name=name, value=words, why=why, group=group, variable=variable)


def switch(group: str, name: str, why: str) -> Flag:
    """An option without a value."""
    return Flag(name=name, why=why, group=group)


# One option as a writer yields it: name, value and why; a switch has no value.
Row = tuple[str, object, str] | tuple[str, str] | Flag
P = ParamSpec("P")


def as_flags(
    rows: Iterable[Row], group: str = "", spell: Callable[[str, str, Any, str], Flag] = flag
) -> Iterator[Flag]:
    """The rows as flags of one group; flags pass unchanged.

    spell: makes the flag of an option with a value.
    """
    for row in rows:
        if isinstance(row, Flag):
            yield row
        elif len(row) == 2:
            yield switch(group, *row)
        else:
            yield spell(group, *row)


def in_group(
    group: str, spell: Callable[[str, str, Any, str], Flag] = flag
) -> Callable[[Callable[P, Iterator[Row]]], Callable[P, Iterator[Flag]]]:
    """Decorator: makes the rows that a function yields flags of one group; flags pass unchanged.

    spell: makes the flag of an option with a value.
    """

    def decorate(say: Callable[P, Iterator[Row]]) -> Callable[P, Iterator[Flag]]:
        @wraps(say)
        def flags(*args: P.args, **kwargs: P.kwargs) -> Iterator[Flag]:
            yield from as_flags(say(*args, **kwargs), group, spell)

        return flags

    return decorate


class Bundle(Spec):
    """All that is needed to run one plan in one framework: files, and the reason for each flag.

    starts: where `main` is called: on every node, with its NODE_RANK and the MASTER_ADDR, or only
    on the first one, from which it reaches the nodes of HOSTFILE by ssh.
    """

    framework: str
    versions: str
    main: str
    starts: Literal["every node", "first node"] = "every node"
    files: dict[str, str]
    flags: tuple[Flag, ...]
    notes: tuple[Note, ...] = ()


class Unsupported(ValueError):
    """The framework cannot run a plan, for all of these reasons."""

    def __init__(self, framework: str, reasons: tuple[Reason, ...]) -> None:
        self.framework = framework
        self.reasons = reasons
        super().__init__(
            f"{framework} cannot run this plan: " + "; ".join(reason.text for reason in reasons)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Lets pickle carry the error to another process."""
        return type(self), (self.framework, self.reasons)


@dataclass(frozen=True)
class Framework:
    """One training framework, as the search, the emitter and the readers see it.

    fields: how each field of a plan is set, and which values of it are left.
    rules: the rules by which it refuses plans, beyond planner.constraints.RULES and those
    made from the fields.
    choices: by plan field, the values that a search for this framework takes instead of the usual
    ones, where several remain; the first one is the simplest.  axes: these, and those made from the
    fields.
    splits: from (model, pp, tp) to the layers of each stage, if the framework decides them itself.
    read: makes a Reading of files by name, and of the number of accelerators if the files leave it
    open; raises planner.frameworks.read_results.Unreadable.  no_reader: the reason why its emitted
    files cannot be read back, if they cannot; launch files of others may still be read.
    recognises: whether files look like a launch of this framework.
    blocks: the kinds of blocks that it can express if a model's layers follow a pattern; parts: the
    parts of planner.frameworks.model_parts.PARTS that it can express; lacks: sentences on details
    of these in a given model that it cannot express.
    partial_training: rules on training with frozen weights or adapters; None: it trains all
    weights, for the reason in trains_all.
    training: default values of training fields that the request leaves open, in bf16.  adapters:
    those where it asks for adapters; packed_adapters: beside frozen weights of 4 bits.
    steps_in_backward: whether its optimizer can step in the backward pass.  losses: what it trains
    on.
    before_ampere: the attention kernels of a plan that it runs on accelerators without
    FlashAttention 2.
    competes: whether it is searched if the request names no framework; False: it takes the options
    of another framework, which is searched instead.
    starts_on: vendors of planner.frameworks.devices.STACKS on whose accelerators it starts.
    """

    name: str
    title: str
    versions: str
    choices: dict[str, tuple[Value, ...]]
    rules: tuple[Rule, ...]
    fields: dict[str, Field]
    render: Callable[[PlanRequest, ParallelPlan], Bundle] = field(repr=False)
    splits: Callable[[ModelSpec, int, int], tuple[int, ...]] | None = field(
        default=None, repr=False
    )
    read: Callable[[Mapping[str, str], int | None], Reading] | None = field(
        default=None, repr=False
    )
    recognises: Callable[[Mapping[str, str]], bool] = field(default=lambda files: False, repr=False)
    no_reader: str = ""
    blocks: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    lacks: Callable[[ModelSpec], Iterable[str]] = field(default=lambda model: (), repr=False)
    partial_training: tuple[Rule, ...] | None = None
    trains_all: str = "its launch files train all weights"
    training: Mapping[str, Any] = field(default_factory=dict)
    adapters: Mapping[str, Any] = field(default_factory=dict)
    packed_adapters: Mapping[str, Any] = field(default_factory=dict)
    starts_on: tuple[str, ...] = ()
    steps_in_backward: bool = False
    losses: tuple[Loss, ...] = ("next_token",)
    before_ampere: tuple[AttentionKernel, ...] = ("unfused",)
    competes: bool = True
    axes: dict[str, tuple[Value, ...]] = field(init=False, repr=False)

    @property
    def runtime(self) -> RuntimeName:
        """The runtime whose kernels and overlaps its plans are priced with."""
        return str(self.fields["runtime"].only[0])

    @property
    def reads_back(self) -> bool:
        """Whether the files written for it can be read back."""
        return self.read is not None and not self.no_reader

    def __post_init__(self) -> None:
        partial_training = (
            (_trains_all_weights(self.trains_all),)
            if self.partial_training is None
            else self.partial_training
        )
        dynamic = self.fields["dynamic_cp"].supported
        rules = (
            devices.starts_on(self.starts_on),
            _expresses_model(self),
            *partial_training,
            ASSIGNED_LENGTHS if dynamic else ONE_LENGTH,
            _trains_on(self.losses),
            restrictions.attends_by(self.before_ampere),
            *(() if self.steps_in_backward else (AFTER_BACKWARD,)),
            *restrictions.rules(self.fields),
            *self.rules,
        )
        object.__setattr__(self, "rules", rules)
        object.__setattr__(self, "axes", {**restrictions.axes(self.fields), **self.choices})

    def unsaid(self, model: ModelSpec) -> tuple[str, ...]:
        """Sentences on the parts of a model that it has no options for."""
        return (*unsaid(model, self.blocks, self.parts), *self.lacks(model))

    def reasons(self, request: PlanRequest, plan: ParallelPlan) -> tuple[Reason, ...]:
        """Every rule that the plan breaks, ours and the framework's; empty if it can run."""
        context = Context(request.model, request.cluster, request.training)
        return tuple(violations(context, plan, (*RULES, *self.rules)))

    def write(self, request: PlanRequest, plan: ParallelPlan) -> Bundle:
        """The files that launch the plan.

        Raises Unsupported with all reasons at once, before anything is written.
        """
        reasons = self.reasons(request, plan)
        if reasons:
            raise Unsupported(self.title, reasons)
        return self.render(request, plan)


Legal = Callable[[Context, Plans], object]
Explain = str | Callable[[Context, ParallelPlan], str]


def rule(code: str, legal: Legal, explain: Explain, level: Level = "plan") -> Rule:
    """A Rule from functions; `legal` may return one bool for all plans.

    explain: one sentence for illegal plans, in which {p.FIELD} stands for what a plan has and
    {c.training.FIELD} for what the context has, or a function that makes it from one of them.
    """

    def checked(context: Context, plans: Plans) -> BoolArray:
        return np.asarray(legal(context, plans), dtype=np.bool_)

    words = partial(filled, explain) if isinstance(explain, str) else explain
    return Rule(code, checked, words, level)


def filled(sentence: str, context: Context, plan: ParallelPlan) -> str:
    """The sentence with the values of the context and the plan that it names."""
    return sentence.format(c=context, p=plan)


def _expresses_model(framework: Framework) -> Rule:
    """The framework can express the whole model; the refusal lists the frameworks that can."""

    @lru_cache(maxsize=64)
    def unsaid(model: ModelSpec) -> tuple[str, ...]:
        return framework.unsaid(model)

    def text(c: Context, p: ParallelPlan) -> str:
        from planner.frameworks.supported import framework_titles

        others = framework_titles(c)
        none = "no other framework can, as they are modelled here"
        who = f"{', '.join(others)} can" if others else none
        return f"{'; '.join(unsaid(c.model))}; {who}"

    return unsupported(lambda c, p: not unsaid(c.model), text, "degrees")


@cache
def _trains_all_weights(why: str) -> Rule:
    """All weights are trained, without adapters."""
    return unsupported(lambda c, p: not c.training.freezes, why, "degrees")


def unsupported(legal: Legal, explain: Explain, level: Level = "plan") -> Rule:
    """A rule about anything that the framework lacks or refuses, in any part of the plan."""
    return rule("framework_unsupported", legal, explain, level)


_ONE_LENGTH = (
    "its launch files read mock data of one length: leave sample_lengths out to get the same flags "
    "for your own data"
)
ONE_LENGTH = unsupported(lambda c, p: not c.training.sample_lengths, _ONE_LENGTH, "degrees")
# For frameworks with dynamic_cp, which reads a data set of samples.
ASSIGNED_LENGTHS = unsupported(
    lambda c, p: not c.training.sample_lengths or ((p.dynamic_cp > 0) & (p.cp > 1)), _ONE_LENGTH
)


@cache
def _trains_on(losses: tuple[Loss, ...]) -> Rule:
    """The loss is one of these; a rule that frameworks share."""
    known = ["the next token" if one == "next_token" else one for one in losses]
    return unsupported(
        lambda c, p: c.training.loss in losses,
        lambda c, p: (
            f"its launch files train on {' and '.join(known)}: for {c.training.loss} use "
            + ("TRL, LLaMA-Factory or NeMo RL" if c.training.loss == "dpo" else "NeMo RL")
            + ", or your own loss"
        ),
        "degrees",
    )


AFTER_BACKWARD = unsupported(
    lambda c, p: not c.training.optimizer_in_backward,
    "its optimizer steps after the backward pass: leave optimizer_in_backward out",
    "degrees",
)


def one_line(text: str) -> str:
    """The text for a one-line comment: characters that end a line or do not print are blanks."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " for char in text)


def grouped(flags: Iterable[Flag]) -> Iterator[tuple[str, list[Flag]]]:
    """The flags by group, groups in the order in which they first appear."""
    groups: dict[str, list[Flag]] = {}
    for flag in flags:
        groups.setdefault(flag.group, []).append(flag)
    yield from groups.items()
