"""Parser of the bash syntax in launch scripts: text to commands, with the line of every part."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

from planner.frameworks.bash import tree
from planner.frameworks.bash.source import Source
from planner.frameworks.bash.tree import Statements, Word
from planner.frameworks.bash.words import PLACEHOLDER, Words

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
DECLARES = frozenset({"export", "declare", "typeset", "local", "readonly"})
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]\n]*\])?(\+?=)", re.ASCII)
_REDIRECT = re.compile(r"(?:\d+|\{\w+\})?(<<<|<<-|<<|<>|<&|>&|>>|>\||<|>)|(&>>|&>)")
_FUNCTION = re.compile(r"([\w.:-]+)[ \t]*\([ \t]*\)")
_RESERVED = re.compile(r"(?:[a-z]+|!|\{|\}|\[\[|\]\])(?=[\s;&|<>()]|$)")
_TEST_OPERATOR = re.compile(r"&&|\|\||[()<>]|!(?=\s)|(?:==|!=|=~|=)(?=\s)|-[a-z]{1,2}(?=\s)")


@lru_cache(maxsize=16)  # every framework's reader parses the same script
def parse(source: Source) -> Statements:
    """The commands of a script.

    Raises Unreadable with the line if it is not valid bash or nests too deeply.
    """
    return _Parser(source).script()


class _Parser(Words):
    """The parser of commands."""

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
        found: list[tree.Chain] = []
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
                found.append(tree.Chain(chain.first, chain.rest, background))
                if self.position == before:
                    raise self.error(f"unexpected {self.char()!r}")

    def chain(self) -> tree.Chain:
        first = self.pipeline()
        rest: list[tuple[str, tree.Pipeline]] = []
        while True:
            self.blank()
            operator = self.text[self.position : self.position + 2]
            if operator not in ("&&", "||"):
                return tree.Chain(first, tuple(rest), False)
            self.position += 2
            self.blank(newlines=True)
            rest.append((operator, self.pipeline()))

    def pipeline(self) -> tree.Pipeline:
        negated = False
        while (word := self.reserved()) in ("!", "time"):
            negated ^= word == "!"
            self.position += len(word)
            self.blank()
        commands = [self.command()]
        while True:
            self.blank()
            if not self.at("|") or self.at("||"):
                return tree.Pipeline(tuple(commands), negated)
            self.position += 2 if self.at("|&") else 1
            self.blank(newlines=True)
            commands.append(self.command())

    def command(self) -> tree.Command:
        line, word = self.line(), self.reserved()
        compounds: dict[str, Callable[[int], tree.Command]] = {
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
            found = tree.Calculation(expression, line, skipped.source)
        elif self.at("("):
            self.position += 1
            found = tree.Group(self.statements(()), True)
            self.expect(")", "(", line)
        elif match := _FUNCTION.match(self.text, self.position):
            self.position = match.end()
            self.blank(newlines=True)
            with self.deeper():
                return tree.Function(match[1], self.command())
        else:
            return self.simple()
        while self.redirect([]):  # redirections of a compound command are ignored
            pass
        return found

    def keyword(self, *words: str, opener: str, line: int) -> str:
        self.blank(newlines=True)
        word = self.reserved()
        if word not in words:
            raise self.error(f"{opener} has no {words[-1]}", line)
        self.position += len(word)
        return word

    def if_(self, line: int) -> tree.Command:
        branches: list[tuple[Statements, Statements]] = []
        otherwise: Statements = ()
        word = "if"
        self.position += 2
        while word in ("if", "elif"):
            condition = self.statements(("then",))
            self.keyword("then", opener="if", line=line)
            body = self.statements(("elif", "else", "fi"))
            branches.append((condition, body))
            word = self.keyword("elif", "else", "fi", opener="if", line=line)
        if word == "else":
            otherwise = self.statements(("fi",))
            self.keyword("fi", opener="if", line=line)
        return tree.If(tuple(branches), otherwise, line)

    def loop(self, line: int, opener: str) -> Statements:
        self.blank()
        self.take(";")
        if self.keyword("do", "{", opener=opener, line=line) == "{":
            raise self.error(f"{opener} without do", line)
        body = self.statements(("done",))
        self.keyword("done", opener=opener, line=line)
        return body

    def for_(self, line: int) -> tree.Command:
        word = self.reserved()
        self.position += len(word)
        self.blank()
        if self.at("(("):
            return self.counted(line, word)
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
            return tree.Select(body, line)
        return tree.For(name[0], None if words is None else tuple(words), body, line)

    def counted(self, line: int, word: str) -> tree.Command:
        """`for ((first; condition; step))` from its first parenthesis on."""
        start = self.position + 2
        source = self.opaque(self.position + 1, ")", False).source
        inside = self.text[start : self.position - 2]
        first, second = inside.find(";"), inside.rfind(";")
        if not source.endswith("))") or inside.count(";") != 2:
            raise self.error("for (( needs two semicolons and ))", line)
        places = (start - 1, start + first, start + second, self.position - 2)
        words = [self.part(a + 1, b) for a, b in pairwise(places)]
        return tree.Counted(words[0], words[1], words[2], self.loop(line, word), line)

    def while_(self, line: int) -> tree.Command:
        word = self.reserved()
        self.position += len(word)
        condition = self.statements(("do",))
        return tree.While(condition, word == "until", self.loop(line, word), line)

    def case(self, line: int) -> tree.Command:
        self.position += 4
        self.blank()
        subject = self.word()
        self.keyword("in", opener="case", line=line)
        branches: list[tuple[tuple[Word, ...], Statements]] = []
        while True:
            self.blank(newlines=True)
            if self.reserved() == "esac":
                self.position += 4
                return tree.Case(subject, tuple(branches), line)
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

    def function(self, line: int) -> tree.Command:
        self.position += len("function")
        self.blank()
        match = re.compile(r"([\w.:-]+)[ \t]*(?:\([ \t]*\))?").match(self.text, self.position)
        if match is None:
            raise self.error("function has no name")
        self.position = match.end()
        self.blank(newlines=True)
        with self.deeper():
            return tree.Function(match[1], self.command())

    def braces(self, line: int) -> tree.Command:
        self.position += 1
        body = self.statements(("}",))
        self.keyword("}", opener="{", line=line)
        return tree.Group(body, False)

    def condition(self, line: int) -> tree.Command:
        start = self.position
        self.position += 2
        tokens: list[str | Word] = []
        while True:
            self.blank(newlines=True)
            if self.position >= self.end:
                raise self.error("[[ has no ]]", line)
            if self.reserved() == "]]":
                self.position += 2
                return tree.Condition(tuple(tokens), line, self.text[start : self.position])
            operator = _TEST_OPERATOR.match(self.text, self.position)
            if tokens and tokens[-1] == "=~":
                regex = re.compile(r"(?:\\.|'[^']*'|\"[^\"]*\"|[^\s'\"])+").match(
                    self.text, self.position
                )
                if regex is None:
                    raise self.error("=~ has no pattern", line)
                tokens.append((tree.Opaque(self.line(), True, regex[0]),))
                self.position = regex.end()
            elif operator:
                tokens.append(operator[0])
                self.position = operator.end()
            else:
                word = self.word()
                if not word:
                    raise self.error(f"unexpected {self.char()!r} in [[")
                tokens.append(word)

    def redirect(self, redirects: list[tree.Redirect]) -> bool:
        """Read one redirection; False if none begins here."""
        self.blank()
        match = _REDIRECT.match(self.text, self.position)
        if match is None or PLACEHOLDER.match(self.text, self.position):
            return False
        operator = match[1] or match[2]
        if operator in ("<", ">") and self.text[match.end() : match.end() + 1] == "(":
            return False
        self.position = match.end()
        self.blank()
        target = self.word()
        if not target:
            raise self.error(f"{operator} is followed by no file name: bash stops here")
        found = tree.Redirect(operator, target)
        if operator in ("<<", "<<-"):
            quoted = any(getattr(part, "quoted", False) for part in target)
            delimiter = "".join(
                part.text if isinstance(part, tree.Literal) else part.source for part in target
            )
            self.pending.append((found, delimiter, quoted, operator == "<<-"))
        redirects.append(found)
        return True

    def simple(self) -> tree.Command:
        line = self.line()
        assignments: list[tree.Assignment] = []
        words: list[Word] = []
        redirects: list[tree.Redirect] = []
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
        return tree.Simple(tuple(assignments), tuple(words), tuple(redirects), line)

    def assignment(self, match: re.Match[str]) -> tree.Assignment:
        line = self.line()
        self.position = match.end()
        index = None
        if match[2]:
            index = self.part(match.start(2) + 1, match.end(2) - 1)
        append = match[3] == "+="
        if not self.take("("):
            return tree.Assignment(match[1], index, append, self.word(), None, line)
        elements: list[Word] = []
        while True:
            self.blank(newlines=True)
            if self.take(")"):
                return tree.Assignment(match[1], index, append, (), tuple(elements), line)
            keyed = re.compile(r"\[[^\]\n]*\]=").match(self.text, self.position)
            word = self.word()
            if not word:
                if self.position >= self.end:
                    raise self.error("an array is not closed", line)
                raise self.error(f"unexpected {self.char()!r} in an array")
            elements.append((tree.Opaque(word[0].line, True, keyed[0]),) if keyed else word)
