"""Words of bash: quotes, expansions and here-documents, with the line of every part.

Command substitutions are not parsed: each is one opaque part of a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from planner.frameworks.bash import tree
from planner.frameworks.bash.source import Source
from planner.frameworks.bash.tree import Word
from planner.frameworks.read_results import Unreadable

MAX_NESTING = 30
_PARAMETER = re.compile(r"[A-Za-z_]\w*|\d+|[@*#?$!-]", re.ASCII)
_PLAIN = re.compile(r"[^\\'\"$`\s;&|<>()]+")
_DOUBLE = re.compile(r"[^\\\"$`\n]+")
_BODY = re.compile(r"[^\\$`\n]+")
_ARGUMENT = re.compile(r"[^\\'\"$`}\n]+")
_QUOTED_ARGUMENT = re.compile(r"[^\\\"$`}\n]+")
# `<DATA PATH>` for the user to fill in; bash would take it for redirections, and the option after
# it for a file.
PLACEHOLDER = re.compile(r"<[A-Za-z][\w ,./:-]*(?<=[\w.])>(?=[\s;\")_.]|/(?!dev/)|$)", re.ASCII)
_DULL = re.compile(r"[^\\\"'$(){}\]#ce]+")  # opens and closes nothing
# In a substitution of commands: what holds brackets that close nothing.
_COMMANDS = (")", "esac")
_COMMENT = re.compile(r"(?<=\s)#")
_CASE = re.compile(r"(?<![\w$-])case\s+[^\s;]{1,200}\s+in\b")
_ESAC = re.compile(r"(?<![\w$-])esac\b")
_BRACKETS = re.compile(r"[\[\]]")
_BRACES = re.compile(r"\{[^{}\s]*\}")
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


@dataclass
class Words:
    """A tokenizer that reads words at a position in a text."""

    source: Source
    position: int = 0
    depth: int = 0
    pending: list[tuple[tree.Redirect, str, bool, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.text = self.source.text
        self.end = len(self.text)

    # Position and errors.

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

    def expect(self, text: str, opener: str, line: int) -> None:
        if not self.take(text):
            raise self.error(f"{opener} has no {text}", line)

    # Blanks, comments, here-documents.

    def blank(self, newlines: bool = False) -> None:
        """Skip blanks, line continuations and comments; with newlines, skip these too."""
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
        """Skip a newline, and read the here-documents that begin after it."""
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
                redirect.body = tuple(tree.Literal(text, line, True) for text, line in runs)
            else:
                body = Words(Source(runs, self.source.file), depth=self.depth)
                redirect.body = body.double(_BODY, "")

    # Words.

    def word(self) -> Word:
        """One word; an empty tuple if none begins here."""
        parts: list[tree.Part] = []
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
            elif empty := PLACEHOLDER.match(self.text, self.position):
                parts.append(tree.Opaque(self.line(), True, empty[0]))
                self.position = empty.end()
            elif not self.quoting(parts, False):
                break
        if any("," in found or ".." in found for found in _BRACES.findall(unquoted)):
            source = "".join(getattr(part, "text", "") for part in parts)
            return (tree.Opaque(parts[0].line, False, source),)
        return tuple(parts)

    def quoting(self, parts: list[tree.Part], quoted: bool) -> bool:
        """Read one quote, escape or expansion; False if none begins here."""
        char, line = self.char(), self.line()
        if char == "\\":
            parts.append(tree.Literal(self.text[self.position + 1 : self.position + 2], line, True))
            self.position += 2
        elif char == "'" and not quoted:
            end = self.text.find("'", self.position + 1)
            if end < 0:
                raise self.error("a single quote is not closed")
            parts.append(tree.Literal("", line, True))
            parts.extend(self.literals(self.position + 1, end, True))
            self.position = end + 1
        elif char == '"' and not quoted:
            self.position += 1
            with self.deeper():
                parts.extend(self.double(_DOUBLE, '"') or (tree.Literal("", line, True),))
            self.expect('"', "a double quote", line)
        elif char == "`":
            end = self.position + 1
            while end < self.end and self.text[end] != "`":
                end += 2 if self.text[end] == "\\" else 1
            if end >= self.end:
                raise self.error("a backquote is not closed")
            parts.append(tree.Opaque(line, quoted, self.text[self.position : end + 1]))
            self.position = end + 1
        elif char == "$":
            self.dollar(parts, quoted)
        else:
            return False
        return True

    def literals(self, start: int, end: int, quoted: bool) -> Iterator[tree.Literal]:
        """Literal text, split where the line number changes."""
        for text, line in self.source.cut(start, end):
            yield tree.Literal(text, line, quoted)

    def double(self, plain: re.Pattern[str], stop: str) -> Word:
        """The content of double quotes or of a here-document, up to the stop."""
        parts: list[tree.Part] = []
        while self.position < self.end:
            run = plain.match(self.text, self.position)
            if run:
                parts.extend(self.literals(run.start(), run.end(), True))
                self.position = run.end()
            elif stop and self.at(stop):
                break
            elif self.at("\n") or (self.at('"') and stop != '"'):
                parts.append(tree.Literal(self.char(), self.line(), True))
                self.position += 1
            elif self.at("\\\n"):
                self.position += 2
            elif self.at("\\"):
                kept = self.text[self.position + 1 : self.position + 2] not in tuple('$`\\"')
                escaped = self.text[self.position + (0 if kept else 1) : self.position + 2]
                parts.append(tree.Literal(escaped, self.line(), True))
                self.position += 2
            else:
                self.quoting(parts, True)
        return tuple(parts)

    def opaque(self, start: int, closer: str, quoted: bool) -> tree.Opaque:
        """Read from here past the closer that matches the opener before `start`."""
        line, begin = self.line(), self.position
        stack, i = [closer], start
        while stack:
            if dull := _DULL.match(self.text, i, self.end):
                i = dull.end()
            if i >= self.end:
                raise self.error(f"{self.text[begin : begin + 20]!r} has no {closer}", line)
            char, top = self.text[i], stack[-1]
            if char == "\\":
                i += 1
            elif char == top or (top == "esac" and _ESAC.match(self.text, i)):
                stack.pop()
            elif skipped := self.aside(i, stack):
                i = skipped
            elif opened := self.opened(i, top):
                stack.append(opened)
                i += char == "$"
            i += 1
        self.position = i
        return tree.Opaque(line, quoted, self.text[begin:i])

    def aside(self, place: int, stack: list[str]) -> int:
        """The last place of what closes nothing: a single-quoted text, a comment; 0 for neither.

        The patterns of a `case` end in brackets of their own: it is put on the stack.
        """
        char, top = self.text[place], stack[-1]
        if char == "'" and top != '"':
            close = self.text.find("'", place + 1)
            return self.end if close < 0 else close
        if top in _COMMANDS and _COMMENT.match(self.text, place):
            end = self.text.find("\n", place)
            return self.end if end < 0 else end
        if top in _COMMANDS and (found := _CASE.match(self.text, place)):
            stack.append("esac")
            return found.end() - 1
        return 0

    def opened(self, place: int, top: str) -> str:
        """What closes the quote, bracket or expansion that begins here; "" if none does."""
        char, both = self.text[place], self.text[place : place + 2]
        if char == '"':
            return '"'
        if both == "$(" or (char == "(" and top == ")"):
            return ")"
        if both == "$[":
            return "]"
        return "}" if both == "${" else ""

    def dollar(self, parts: list[tree.Part], quoted: bool) -> None:
        """Read an expansion or a literal dollar sign."""
        start, line = self.position, self.line()
        following = self.text[start + 1 : start + 2]
        if self.at("$(("):
            skipped = self.opaque(start + 2, ")", quoted)
            inner = skipped.source[2:-1]
            if inner.endswith(")"):
                parts.append(
                    tree.Arithmetic(
                        self.part(start + 3, start + 1 + len(inner)), line, quoted, skipped.source
                    )
                )
            else:
                parts.append(skipped)
        elif self.at("$["):
            skipped = self.opaque(start + 2, "]", quoted)
            expression = self.part(start + 2, self.position - 1)
            parts.append(tree.Arithmetic(expression, line, quoted, skipped.source))
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
            parts.append(tree.Parameter(name, line, quoted, f"${name}"))
        else:
            parts.append(tree.Literal("$", line, quoted))
            self.position += 1

    def part(self, start: int, end: int) -> Word:
        """A stretch of the text, parsed as if in double quotes."""
        with self.deeper():
            stretch = Source(self.source.cut(start, end), self.source.file)
            inner = Words(stretch, depth=self.depth)
            return inner.double(_BODY, "")

    def ansi(self, parts: list[tree.Part]) -> None:
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
        parts.append(tree.Literal(text, line, True))
        self.position = i + 1

    def braced(self, quoted: bool) -> tree.Part:
        """`${...}`; unsupported operators make it opaque."""
        start, line = self.position, self.line()
        self.position += 2
        length = self.at("#") and not self.at("#}")
        self.position += length
        indices = re.compile(r"!\w+\[[@*]\]\}").match(self.text, self.position) is not None
        self.position += indices
        name = _PARAMETER.match(self.text, self.position)
        index: Word | None = None
        if name is not None:
            self.position = name.end()
            if self.take("["):
                close = self.closing()
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
                return tree.Parameter(
                    name[0], line, quoted, source, index, sign, argument, length, indices
                )
        self.position = start
        return self.opaque(start + 2, "}", quoted)

    def closing(self) -> int:
        """The place of the bracket that closes an index begun before here; -1 without one."""
        deep = 0
        for bracket in _BRACKETS.finditer(self.text, self.position, self.end):
            deep += 1 if bracket[0] == "[" else -1
            if deep < 0:
                return bracket.start()
        return -1

    def argument(self, quoted: bool) -> Word:
        """The word after an operator, up to the closing brace."""
        parts: list[tree.Part] = []
        plain = _QUOTED_ARGUMENT if quoted else _ARGUMENT
        while self.position < self.end and not self.at("}"):
            run = plain.match(self.text, self.position)
            if run or self.at("\n"):
                end = run.end() if run else self.position + 1
                parts.extend(self.literals(self.position, end, quoted))
                self.position = end
            elif self.at("\\\n"):
                self.position += 2
            else:
                # A quote inside quotes opens a nested string, in which } closes nothing.
                self.quoting(parts, quoted and not self.at('"'))
        return tuple(parts)
