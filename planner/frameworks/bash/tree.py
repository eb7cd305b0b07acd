"""The syntax tree of a bash script: commands, words and their parts, each with its line."""

from __future__ import annotations

from dataclasses import dataclass

# Text as runs, each with the line on which it was written.
Value = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Literal:
    text: str
    line: int
    quoted: bool


@dataclass(frozen=True)
class Parameter:
    """`$name`, `${name[index]}`, `${#name}`, `${!name[@]}` or `${name OPERATOR argument}`.

    indices: of an array, instead of its elements.
    """

    name: str
    line: int
    quoted: bool
    source: str
    index: Word | None = None
    operator: str = ""
    argument: Word = ()
    length: bool = False
    indices: bool = False

    @property
    def place(self) -> str:
        """The index as far as it is literal; `@` and `*` are every element."""
        return "".join(part.text for part in self.index or () if isinstance(part, Literal))


@dataclass(frozen=True)
class Arithmetic:
    expression: Word
    line: int
    quoted: bool
    source: str


@dataclass(frozen=True)
class Opaque:
    """A part that is not evaluated: command or process substitution, pattern operators."""

    line: int
    quoted: bool
    source: str


Part = Literal | Parameter | Arithmetic | Opaque
Word = tuple[Part, ...]


@dataclass(frozen=True)
class Assignment:
    name: str
    index: Word | None
    append: bool
    value: Word
    elements: tuple[Word, ...] | None
    line: int


@dataclass
class Redirect:
    operator: str
    target: Word
    body: Word = ()


@dataclass(frozen=True)
class Simple:
    """A simple command; for `export` and its like, assignments stand among its arguments."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...]
    line: int


@dataclass(frozen=True)
class Condition:
    """`[[ ... ]]`: operators as text, operands as words."""

    tokens: tuple[str | Word, ...]
    line: int
    source: str


@dataclass(frozen=True)
class Calculation:
    expression: Word
    line: int
    source: str


@dataclass(frozen=True)
class If:
    branches: tuple[tuple[Statements, Statements], ...]
    otherwise: Statements
    line: int


@dataclass(frozen=True)
class For:
    """words: None for the positional parameters."""

    name: str
    words: tuple[Word, ...] | None
    body: Statements
    line: int


@dataclass(frozen=True)
class While:
    condition: Statements
    until: bool
    body: Statements
    line: int


@dataclass(frozen=True)
class Counted:
    """`for ((first; condition; step))`."""

    first: Word
    condition: Word
    step: Word
    body: Statements
    line: int


@dataclass(frozen=True)
class Select:
    """A loop over what a user chooses, which is not followed."""

    body: Statements
    line: int


@dataclass(frozen=True)
class Case:
    subject: Word
    branches: tuple[tuple[tuple[Word, ...], Statements], ...]
    line: int


@dataclass(frozen=True)
class Function:
    name: str
    body: Command


@dataclass(frozen=True)
class Group:
    body: Statements
    subshell: bool


@dataclass(frozen=True)
class Pipeline:
    commands: tuple[Command, ...]
    negated: bool


@dataclass(frozen=True)
class Chain:
    """Pipelines joined by && and ||; background: ended by &."""

    first: Pipeline
    rest: tuple[tuple[str, Pipeline], ...]
    background: bool


Compound = If | For | Counted | While | Select | Case
Command = Simple | Condition | Calculation | Compound | Function | Group
Statements = tuple[Chain, ...]
