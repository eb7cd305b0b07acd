"""The syntax of bash as launch scripts use it: text to commands, with the line of every part.

Command substitutions are never looked into: they stay one opaque part of a word.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from planner.frameworks.bash.tree import (
    Arithmetic,
    Assignment,
    Calculation,
    Case,
    Chain,
    Command,
    Condition,
    For,
    Function,
    Group,
    If,
    Literal,
    Opaque,
    Parameter,
    Part,
    Pipeline,
    Redirect,
    Simple,
    Statements,
    Unrolled,
    While,
    Word,
)
from planner.frameworks.reading import Unreadable

MAX_NESTING = 30


NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
DECLARES = frozenset({"export", "declare", "typeset", "local", "readonly"})
_PARAMETER = re.compile(r"[A-Za-z_]\w*|\d+|[@*#?$!-]", re.ASCII)
_PLAIN = re.compile(r"[^\\'\"$`\s;&|<>()]+")
_DOUBLE = re.compile(r"[^\\\"$`\n]+")
_BODY = re.compile(r"[^\\$`\n]+")
_ARGUMENT = re.compile(r"[^\\'\"$`}\n]+")
_QUOTED_ARGUMENT = re.compile(r"[^\\\"$`}\n]+")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]\n]*\])?(\+?=)", re.ASCII)
# `<DATA PATH>` where a reader is to put a word of his own; bash would take it for redirections, and
# the option after it for a file.
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w ,./:-]*(?<=[\w.])>(?=[\s;\")_.]|/(?!dev/)|$)", re.ASCII)
_REDIRECT = re.compile(r"(?:\d+|\{\w+\})?(<<<|<<-|<<|<>|<&|>&|>>|>\||<|>)|(&>>|&>)")
_FUNCTION = re.compile(r"([\w.:-]+)[ \t]*\([ \t]*\)")
_RESERVED = re.compile(r"(?:[a-z]+|!|\{|\}|\[\[|\]\])(?=[\s;&|<>()]|$)")
_BRACES = re.compile(r"\{[^{}\s]*\}")
_TEST_OPERATOR = re.compile(r"&&|\|\||[()<>]|!(?=\s)|(?:==|!=|=~|=)(?=\s)|-[a-z]{1,2}(?=\s)")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "e": "\x1b",
}


class Source:
    """Text made of runs, and the line of every position of it."""

    def __init__(self, runs: Iterable[tuple[str, int]], file: str) -> None:
        self.file = file
        parts, self.starts, self.lines, position = [], [0], [1], 0
        for text, line in runs:
            for piece in text.splitlines(keepends=True) if "\n" in text else [text]:
                parts.append(piece)
                self.starts.append(position)
                self.lines.append(line)
                position += len(piece)
        self.text = "".join(parts)

    def line(self, position: int) -> int:
        return self.lines[bisect_right(self.starts, position) - 1]

    def cut(self, start: int, end: int) -> Iterator[tuple[str, int]]:
        """The runs between two positions."""
        run = bisect_right(self.starts, start) - 1
        while start < end:
            stop = self.starts[run + 1] if run + 1 < len(self.starts) else end
            yield self.text[start : min(stop, end)], self.lines[run]
            start, run = stop, run + 1


def whole(text: str, file: str, first: int = 1) -> Source:
    """The text of a file, or of a part of it that begins on a line."""
    lines = text.split("\n")
    runs = [(f"{line}\n", number) for number, line in enumerate(lines, first)]
    return Source(runs, file)


def parse(source: Source) -> Statements:
    """The commands of a script.

    Raises Unreadable with the line where it is no bash, or nests too deeply.
    """
    return _Parser(source).script()


@dataclass
class _Parser:
    source: Source
    position: int = 0
    depth: int = 0
    pending: list[tuple[Redirect, str, bool, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.text = self.source.text
        self.end = len(self.text)

    # Places and errors.

    def line(self) -> int:
        return self.source.line(self.position)

    def error(self, text: str, line: int = 0) -> Unreadable:
        return Unreadable(text, self.source.file, line or self.line())

    @contextmanager
    def deeper(self) -> Iterator[None]:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self.error(f"nested more than {MAX_NESTING} deep")
        yield
        self.depth -= 1

    def at(self, text: str) -> bool:
        return self.text.startswith(text, self.position)

    def char(self) -> str:
        return self.text[self.position : self.position + 1]

    def take(self, text: str) -> bool:
        if not self.at(text):
            return False
        self.position += len(text)
        return True

    def expect(self, text: str, opened: str, line: int) -> None:
        if not self.take(text):
            raise self.error(f"{opened} has no {text}", line)

    # Blanks, comments, here-documents.

    def blank(self, newlines: bool = False) -> None:
        """Past blanks, continued lines and comments, and newlines where they mean nothing."""
        while self.position < self.end:
            char = self.text[self.position]
            if char in " \t\r":
                self.position += 1
            elif self.at("\\\n"):
                self.position += 2
            elif self.at("\\\r\n"):
                self.position += 3
            elif char == "#":
                end = self.text.find("\n", self.position)
                self.position = self.end if end < 0 else end
            elif char == "\n" and newlines:
                self.newline()
            else:
                return

    def newline(self) -> None:
        """Past the end of a line, and the here-documents that begin after it."""
        self.position += 1
        pending, self.pending = self.pending, []
        for redirect, delimiter, quoted, tabs in pending:
            runs: list[tuple[str, int]] = []
            while self.position < self.end:
                start, end = self.position, self.text.find("\n", self.position)
                end = self.end if end < 0 else end
                self.position = min(end + 1, self.end)
                while tabs and start < end and self.text[start] == "\t":
                    start += 1
                if self.text[start:end].rstrip("\r") == delimiter:
                    break
                runs.extend(self.source.cut(start, self.position))
            if quoted:
                redirect.body = tuple(Literal(text, line, True) for text, line in runs)
            else:
                body = _Parser(Source(runs, self.source.file), depth=self.depth)
                redirect.body = body.double(_BODY, "")

    # Words.

    def word(self) -> Word:
        """One word; empty tuple where none begins here."""
        parts: list[Part] = []
        unquoted = ""
        while self.position < self.end:
            char = self.text[self.position]
            plain = _PLAIN.match(self.text, self.position)
            if plain:
                parts.extend(self.literals(plain.start(), plain.end(), False))
                unquoted += plain[0] if len(unquoted) < 4096 else ""
                self.position = plain.end()
            elif self.at("\\\n") or self.at("\\\r\n"):
                self.position += 2 if self.at("\\\n") else 3
            elif char in "<>" and self.text[self.position + 1 : self.position + 2] == "(":
                parts.append(self.opaque(self.position + 2, ")", False))
            elif empty := _PLACEHOLDER.match(self.text, self.position):
                parts.append(Opaque(self.line(), True, empty[0]))
                self.position = empty.end()
            elif not self.quoting(parts, False):
                break
        if any("," in found or ".." in found for found in _BRACES.findall(unquoted)):
            source = "".join(getattr(part, "text", "") for part in parts)
            return (Opaque(parts[0].line, False, source),)
        return tuple(parts)

    def quoting(self, parts: list[Part], quoted: bool) -> bool:
        """Past one quote, escape or expansion; False where none begins here."""
        char, line = self.char(), self.line()
        if char == "\\":
            parts.append(Literal(self.text[self.position + 1 : self.position + 2], line, True))
            self.position += 2
        elif char == "'" and not quoted:
            end = self.text.find("'", self.position + 1)
            if end < 0:
                raise self.error("a single quote is not closed")
            parts.append(Literal("", line, True))
            parts.extend(self.literals(self.position + 1, end, True))
            self.position = end + 1
        elif char == '"' and not quoted:
            self.position += 1
            with self.deeper():
                parts.extend(self.double(_DOUBLE, '"') or (Literal("", line, True),))
            self.expect('"', "a double quote", line)
        elif char == "`":
            end = self.position + 1
            while end < self.end and self.text[end] != "`":
                end += 2 if self.text[end] == "\\" else 1
            if end >= self.end:
                raise self.error("a backquote is not closed")
            parts.append(Opaque(line, quoted, self.text[self.position : end + 1]))
            self.position = end + 1
        elif char == "$":
            self.dollar(parts, quoted)
        else:
            return False
        return True

    def literals(self, start: int, end: int, quoted: bool) -> Iterator[Literal]:
        """Text as it stands, cut where its lines change."""
        for text, line in self.source.cut(start, end):
            yield Literal(text, line, quoted)

    def double(self, plain: re.Pattern[str], stop: str) -> Word:
        """What stands between double quotes or in a here-document, up to the stop."""
        parts: list[Part] = []
        while self.position < self.end:
            run = plain.match(self.text, self.position)
            if run:
                parts.extend(self.literals(run.start(), run.end(), True))
                self.position = run.end()
            elif stop and self.at(stop):
                break
            elif self.at("\n") or (self.at('"') and stop != '"'):
                parts.append(Literal(self.char(), self.line(), True))
                self.position += 1
            elif self.at("\\\n"):
                self.position += 2
            elif self.at("\\"):
                kept = self.text[self.position + 1 : self.position + 2] not in tuple('$`\\"')
                escaped = self.text[self.position + (0 if kept else 1) : self.position + 2]
                parts.append(Literal(escaped, self.line(), True))
                self.position += 2
            else:
                self.quoting(parts, True)
        return tuple(parts)

    def opaque(self, start: int, closer: str, quoted: bool) -> Opaque:
        """From here past the closer of what was opened before `start`."""
        line, begin = self.line(), self.position
        stack, i = [closer], start
        while stack:
            if i >= self.end:
                raise self.error(f"{self.text[begin : begin + 20]!r} has no {closer}", line)
            char, top = self.text[i], stack[-1]
            if char == "\\":
                i += 1
            elif char == top:
                stack.pop()
            elif self.text.startswith("$(", i) or self.text.startswith("${", i):
                stack.append(")" if self.text[i + 1] == "(" else "}")
                i += 1
            elif char == '"':
                stack.append('"')
            elif char == "'" and top != '"':
                close = self.text.find("'", i + 1)
                i = self.end if close < 0 else close
            elif char == "(" and top == ")":
                stack.append(")")
            i += 1
        self.position = i
        return Opaque(line, quoted, self.text[begin:i])

    def dollar(self, parts: list[Part], quoted: bool) -> None:
        """An expansion, or a dollar sign that is only that."""
        start, line = self.position, self.line()
        following = self.text[start + 1 : start + 2]
        if self.at("$(("):
            skipped = self.opaque(start + 2, ")", quoted)
            inner = skipped.source[2:-1]
            if inner.endswith(")"):
                parts.append(
                    Arithmetic(
                        self.part(start + 3, start + 1 + len(inner)), line, quoted, skipped.source
                    )
                )
            else:
                parts.append(skipped)
        elif self.at("$["):
            skipped = self.opaque(start + 2, "]", quoted)
            expression = self.part(start + 2, self.position - 1)
            parts.append(Arithmetic(expression, line, quoted, skipped.source))
        elif following == "(":
            parts.append(self.opaque(start + 2, ")", quoted))
        elif following == "{":
            with self.deeper():
                parts.append(self.braced(quoted))
        elif following == "'" and not quoted:
            self.ansi(parts)
        elif following == '"' and not quoted:
            self.position += 1
        elif match := _PARAMETER.match(self.text, start + 1):
            name = match[0] if not match[0].isdigit() else match[0][0]
            self.position = start + 1 + len(name)
            parts.append(Parameter(name, line, quoted, f"${name}"))
        else:
            parts.append(Literal("$", line, quoted))
            self.position += 1

    def part(self, start: int, end: int) -> Word:
        """A stretch of the text as if it stood between double quotes."""
        with self.deeper():
            stretch = Source(self.source.cut(start, end), self.source.file)
            inner = _Parser(stretch, depth=self.depth)
            return inner.double(_BODY, "")

    def ansi(self, parts: list[Part]) -> None:
        """`$'...'` with its escapes."""
        line, i = self.line(), self.position + 2
        while i < self.end and self.text[i] != "'":
            i += 2 if self.text[i] == "\\" else 1
        if i >= self.end:
            raise self.error("a single quote is not closed")

        def character(match: re.Match[str]) -> str:
            code = match[1]
            if code[0] in "xu" and len(code) > 1:
                return chr(int(code[1:], 16))
            if code[0] in "01234567":
                return chr(int(code, 8) & 255)
            return _ESCAPES.get(code, code if code in "\\'\"?" else f"\\{code}")

        text = _ESCAPE.sub(character, self.text[self.position + 2 : i])
        parts.append(Literal(text, line, True))
        self.position = i + 1

    def braced(self, quoted: bool) -> Part:
        """`${...}`; what has no meaning here stays opaque."""
        start, line = self.position, self.line()
        self.position += 2
        length = self.at("#") and not self.at("#}")
        self.position += length
        name = _PARAMETER.match(self.text, self.position)
        index: Word | None = None
        if name is not None:
            self.position = name.end()
            if self.take("["):
                close = self.text.find("]", self.position)
                if close < 0:
                    raise self.error("an index is not closed", line)
                index = self.part(self.position, close)
                self.position = close + 1
            operator = re.compile(r"\}|:?[-=?+]|,,(?=\})|\^\^(?=\})").match(
                self.text, self.position
            )
            if operator is not None and index is not None and operator[0][0] in ",^":
                operator = None
            if operator is not None and not (length and operator[0] != "}"):
                self.position = operator.end()
                argument: Word = ()
                if operator[0] != "}":
                    argument = self.argument(quoted)
                    self.expect("}", "${", line)
                source = self.text[start : self.position]
                sign = operator[0].rstrip("}")
                return Parameter(name[0], line, quoted, source, index, sign, argument, length)
        self.position = start
        return self.opaque(start + 2, "}", quoted)

    def argument(self, quoted: bool) -> Word:
        """The word after an operator, up to the closing brace."""
        parts: list[Part] = []
        plain = _QUOTED_ARGUMENT if quoted else _ARGUMENT
        while self.position < self.end and not self.at("}"):
            run = plain.match(self.text, self.position)
            if run or self.at("\n"):
                end = run.end() if run else self.position + 1
                parts.extend(self.literals(self.position, end, quoted))
                self.position = end
            elif self.at("\\\n"):
                self.position += 2
            elif not (quoted and self.at('"')):
                self.quoting(parts, quoted)
            else:
                self.position += 1  # an inner quote inside quotes groups nothing here
        return tuple(parts)

    # Commands.

    def script(self) -> Statements:
        found = self.statements(())
        if self.position < self.end:
            raise self.error(f"unexpected {self.text[self.position : self.position + 10]!r}")
        return found

    def reserved(self) -> str:
        match = _RESERVED.match(self.text, self.position)
        return match[0] if match else ""

    def statements(self, stops: tuple[str, ...]) -> Statements:
        """Commands up to a reserved word, `)` or `;;` of `stops`, which is left in place."""
        found: list[Chain] = []
        with self.deeper():
            while True:
                self.blank(newlines=True)
                if self.position >= self.end:
                    return tuple(found)
                if self.at(")") or self.at(";;") or self.at(";&") or self.reserved() in stops:
                    return tuple(found)
                before = self.position
                chain = self.chain()
                self.blank()
                background = self.at("&") and not self.at("&&")
                if background or (self.at(";") and not self.at(";;")):
                    self.position += 1
                found.append(Chain(chain.first, chain.rest, background))
                if self.position == before:
                    raise self.error(f"unexpected {self.char()!r}")

    def chain(self) -> Chain:
        first = self.pipeline()
        rest: list[tuple[str, Pipeline]] = []
        while True:
            self.blank()
            operator = self.text[self.position : self.position + 2]
            if operator not in ("&&", "||"):
                return Chain(first, tuple(rest), False)
            self.position += 2
            self.blank(newlines=True)
            rest.append((operator, self.pipeline()))

    def pipeline(self) -> Pipeline:
        negated = False
        while (word := self.reserved()) in ("!", "time"):
            negated ^= word == "!"
            self.position += len(word)
            self.blank()
        commands = [self.command()]
        while True:
            self.blank()
            if not self.at("|") or self.at("||"):
                return Pipeline(tuple(commands), negated)
            self.position += 2 if self.at("|&") else 1
            self.blank(newlines=True)
            commands.append(self.command())

    def command(self) -> Command:
        line, word = self.line(), self.reserved()
        compounds: dict[str, Callable[[int], Command]] = {
            "if": self.if_,
            "for": self.for_,
            "select": self.for_,
            "while": self.while_,
            "until": self.while_,
            "case": self.case,
            "function": self.function,
            "{": self.braces,
            "[[": self.condition,
        }
        if word in compounds:
            found = compounds[word](line)
        elif self.at("(("):
            skipped = self.opaque(self.position + 1, ")", False)
            if not skipped.source.endswith("))"):
                raise self.error("(( has no ))", line)
            expression = self.part(self.position - len(skipped.source) + 2, self.position - 2)
            found = Calculation(expression, line, skipped.source)
        elif self.at("("):
            self.position += 1
            found = Group(self.statements(()), True)
            self.expect(")", "(", line)
        elif match := _FUNCTION.match(self.text, self.position):
            self.position = match.end()
            self.blank(newlines=True)
            with self.deeper():
                return Function(match[1], self.command())
        else:
            return self.simple()
        while self.redirect([]):  # a redirected compound command runs the same
            pass
        return found

    def keyword(self, *words: str, opened: str, line: int) -> str:
        self.blank(newlines=True)
        word = self.reserved()
        if word not in words:
            raise self.error(f"{opened} has no {words[-1]}", line)
        self.position += len(word)
        return word

    def if_(self, line: int) -> Command:
        branches: list[tuple[Statements, Statements]] = []
        otherwise: Statements = ()
        word = "if"
        self.position += 2
        while word in ("if", "elif"):
            condition = self.statements(("then",))
            self.keyword("then", opened="if", line=line)
            body = self.statements(("elif", "else", "fi"))
            branches.append((condition, body))
            word = self.keyword("elif", "else", "fi", opened="if", line=line)
        if word == "else":
            otherwise = self.statements(("fi",))
            self.keyword("fi", opened="if", line=line)
        return If(tuple(branches), otherwise, line)

    def loop(self, line: int, opened: str) -> Statements:
        self.blank()
        self.take(";")
        if self.keyword("do", "{", opened=opened, line=line) == "{":
            raise self.error(f"{opened} without do", line)
        body = self.statements(("done",))
        self.keyword("done", opened=opened, line=line)
        return body

    def for_(self, line: int) -> Command:
        word = self.reserved()
        self.position += len(word)
        self.blank()
        if self.at("(("):
            self.opaque(self.position + 1, ")", False)
            self.loop(line, word)
            return Unrolled(line)
        name = NAME.match(self.text, self.position)
        if name is None:
            raise self.error(f"{word} has no name")
        self.position = name.end()
        self.blank(newlines=True)
        words: list[Word] | None = None
        if self.reserved() == "in":
            self.position += 2
            words = []
            self.blank()
            while parts := self.word():
                words.append(parts)
                self.blank()
        body = self.loop(line, word)
        if word == "select":
            return Unrolled(line)
        return For(name[0], None if words is None else tuple(words), body, line)

    def while_(self, line: int) -> Command:
        word = self.reserved()
        self.position += len(word)
        condition = self.statements(("do",))
        return While(condition, word == "until", self.loop(line, word), line)

    def case(self, line: int) -> Command:
        self.position += 4
        self.blank()
        subject = self.word()
        self.keyword("in", opened="case", line=line)
        branches: list[tuple[tuple[Word, ...], Statements]] = []
        while True:
            self.blank(newlines=True)
            if self.reserved() == "esac":
                self.position += 4
                return Case(subject, tuple(branches), line)
            self.take("(")
            patterns = []
            while True:
                self.blank()
                pattern = self.word()
                if not pattern:
                    raise self.error("case has no esac", line)
                patterns.append(pattern)
                self.blank()
                if not self.take("|"):
                    break
            self.expect(")", "a pattern", self.line())
            branches.append((tuple(patterns), self.statements(("esac",))))
            self.blank(newlines=True)
            if not (self.take(";;&") or self.take(";;") or self.take(";&")) and (
                self.reserved() != "esac"
            ):
                raise self.error("case has no esac", line)

    def function(self, line: int) -> Command:
        self.position += len("function")
        self.blank()
        match = re.compile(r"([\w.:-]+)[ \t]*(?:\([ \t]*\))?").match(self.text, self.position)
        if match is None:
            raise self.error("function has no name")
        self.position = match.end()
        self.blank(newlines=True)
        with self.deeper():
            return Function(match[1], self.command())

    def braces(self, line: int) -> Command:
        self.position += 1
        body = self.statements(("}",))
        self.keyword("}", opened="{", line=line)
        return Group(body, False)

    def condition(self, line: int) -> Command:
        start = self.position
        self.position += 2
        tokens: list[str | Word] = []
        while True:
            self.blank(newlines=True)
            if self.position >= self.end:
                raise self.error("[[ has no ]]", line)
            if self.reserved() == "]]":
                self.position += 2
                return Condition(tuple(tokens), line, self.text[start : self.position])
            operator = _TEST_OPERATOR.match(self.text, self.position)
            if tokens and tokens[-1] == "=~":
                regex = re.compile(r"(?:\\.|'[^']*'|\"[^\"]*\"|[^\s'\"])+").match(
                    self.text, self.position
                )
                if regex is None:
                    raise self.error("=~ has no pattern", line)
                tokens.append((Opaque(self.line(), True, regex[0]),))
                self.position = regex.end()
            elif operator:
                tokens.append(operator[0])
                self.position = operator.end()
            else:
                word = self.word()
                if not word:
                    raise self.error(f"unexpected {self.char()!r} in [[")
                tokens.append(word)

    def redirect(self, redirects: list[Redirect]) -> bool:
        """Past one redirection; False where none begins here."""
        self.blank()
        match = _REDIRECT.match(self.text, self.position)
        if match is None or _PLACEHOLDER.match(self.text, self.position):
            return False
        operator = match[1] or match[2]
        if operator in ("<", ">") and self.text[match.end() : match.end() + 1] == "(":
            return False
        self.position = match.end()
        self.blank()
        target = self.word()
        if not target:
            raise self.error(f"{operator} is followed by no file name: bash stops here")
        found = Redirect(operator, target)
        if operator in ("<<", "<<-"):
            quoted = any(getattr(part, "quoted", False) for part in target)
            delimiter = "".join(
                part.text if isinstance(part, Literal) else part.source for part in target
            )
            self.pending.append((found, delimiter, quoted, operator == "<<-"))
        redirects.append(found)
        return True

    def simple(self) -> Command:
        line = self.line()
        assignments: list[Assignment] = []
        words: list[Word] = []
        redirects: list[Redirect] = []
        declares = False
        while True:
            if self.redirect(redirects):
                continue
            match = _ASSIGNMENT.match(self.text, self.position)
            if match and (not words or declares):
                assignments.append(self.assignment(match))
                continue
            word = self.word()
            if not word:
                break
            if not words:
                declares = len(word) == 1 and getattr(word[0], "text", "") in DECLARES
            words.append(word)
        if not (assignments or words or redirects):
            raise self.error(f"unexpected {self.char()!r}" if self.char() else "unexpected end")
        return Simple(tuple(assignments), tuple(words), tuple(redirects), line)

    def assignment(self, match: re.Match[str]) -> Assignment:
        line = self.line()
        self.position = match.end()
        index = None
        if match[2]:
            index = self.part(match.start(2) + 1, match.end(2) - 1)
        append = match[3] == "+="
        if not self.take("("):
            return Assignment(match[1], index, append, self.word(), None, line)
        elements: list[Word] = []
        while True:
            self.blank(newlines=True)
            if self.take(")"):
                return Assignment(match[1], index, append, (), tuple(elements), line)
            keyed = re.compile(r"\[[^\]\n]*\]=").match(self.text, self.position)
            word = self.word()
            if not word:
                if self.position >= self.end:
                    raise self.error("an array is not closed", line)
                raise self.error(f"unexpected {self.char()!r} in an array")
            elements.append((Opaque(word[0].line, True, keyed[0]),) if keyed else word)
