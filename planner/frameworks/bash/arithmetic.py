"""Integer expressions of bash: `$((...))` and `((...))`, without assignments."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

MAX_NESTING = 30
_EXPR = re.compile(r"(?:\$\(|`)\s*expr\s+([\w\s${}+*/%()\\\"'-]{1,200}?)\s*[)`]")
_NAMED = re.compile(r"\$\{?([A-Za-z_]\w*|\d)\}?")
_TOKEN = re.compile(
    r"\s*(?:(0[xX][0-9a-fA-F]+|\d+)|([A-Za-z_]\w*)|(\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%()<>!~&|^?:]))",
    re.ASCII,
)


def _divide(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _power(a: int, b: int) -> int:
    if b < 0:
        raise ValueError("a negative exponent")
    return pow(a, b, 1 << 64)


# Operator -> its precedence and its function.
_BINARY: dict[str, tuple[int, Callable[[int, int], int]]] = {
    "||": (1, lambda a, b: int(bool(a or b))),
    "&&": (2, lambda a, b: int(bool(a and b))),
    "|": (3, operator.or_),
    "^": (4, operator.xor),
    "&": (5, operator.and_),
    "==": (6, lambda a, b: int(a == b)),
    "!=": (6, lambda a, b: int(a != b)),
    "<": (7, lambda a, b: int(a < b)),
    ">": (7, lambda a, b: int(a > b)),
    "<=": (7, lambda a, b: int(a <= b)),
    ">=": (7, lambda a, b: int(a >= b)),
    "<<": (8, lambda a, b: a << (b & 63)),
    ">>": (8, lambda a, b: a >> (b & 63)),
    "+": (9, operator.add),
    "-": (9, operator.sub),
    "*": (10, operator.mul),
    "/": (10, _divide),
    "%": (10, lambda a, b: a - b * _divide(a, b)),
    "**": (12, _power),
}
_UNARY: dict[str, Callable[[int], int]] = {
    "-": operator.neg,
    "+": lambda a: a,
    "!": lambda a: int(not a),
    "~": operator.invert,
}
_UNARY_PRECEDENCE = 11


def _wrapped(number: int) -> int:
    """The number wrapped to a signed 64-bit integer, as bash wraps it."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def evaluate(text: str, value: Callable[[str], int | None]) -> int | None:
    """The value of an expression; None if it is unknown or malformed.

    value: looks up a variable's number; None if unknown.
    """
    tokens, position = [], 0
    text = text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return None
        tokens.append(match)
        position = match.end()
    try:
        return _Expression(tokens, value).whole()
    except (ValueError, ZeroDivisionError):
        return None


class _Expression:
    """Precedence climbing over the tokens; ValueError for a malformed expression."""

    def __init__(self, tokens: list[re.Match[str]], value: Callable[[str], int | None]) -> None:
        self.tokens, self.value, self.next, self.depth = tokens, value, 0, 0

    def whole(self) -> int:
        if not self.tokens:
            return 0
        result = self.ternary()
        if self.next < len(self.tokens):
            raise ValueError("something is left over")
        return result

    def sign(self) -> str:
        return self.tokens[self.next][3] or "" if self.next < len(self.tokens) else ""

    def ternary(self) -> int:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise ValueError("nested too deeply")
        result = self.binary(1)
        if self.sign() == "?":
            self.next += 1
            yes = self.ternary()
            if self.sign() != ":":
                raise ValueError("? without :")
            self.next += 1
            no = self.ternary()
            result = yes if result else no
        self.depth -= 1
        return result

    def binary(self, least: int) -> int:
        left = self.unary()
        while (row := _BINARY.get(self.sign())) is not None and row[0] >= least:
            symbol = self.sign()
            self.next += 1
            # All operators but ** are left-associative.
            right = self.unary() if row[0] > _UNARY_PRECEDENCE else self.binary(row[0] + 1)
            if symbol == "**" and self.sign() == "**":
                raise ValueError("a tower of powers")
            left = _wrapped(row[1](left, right))
        return left

    def unary(self) -> int:
        signs = []
        while self.sign() in _UNARY:
            signs.append(self.sign())
            self.next += 1
        result = self.atom()
        for one in reversed(signs):
            result = _wrapped(_UNARY[one](result))
        return result

    def atom(self) -> int:
        if self.next >= len(self.tokens):
            raise ValueError("an operand is missing")
        match = self.tokens[self.next]
        self.next += 1
        if match[1]:
            digits = match[1]
            octal = len(digits) > 1 and digits[0] == "0" and digits[1] not in "xX"
            return _wrapped(int(digits, 8) if octal else int(digits, 0))
        if match[2]:
            found = self.value(match[2])
            if found is None:
                raise ValueError("a name is not known")
            return found
        if match[3] == "(":
            result = self.ternary()
            if self.sign() != ")":
                raise ValueError("( without )")
            self.next += 1
            return result
        raise ValueError(f"unexpected {match[3]}")


def of_expr(source: str, text_of: Callable[[str], str]) -> str | None:
    """The number that `$(expr ...)` prints; None for anything else, and where it is unknown.

    text_of: the text of a variable.
    """
    match = _EXPR.fullmatch(source)
    if match is None:
        return None
    bare = re.sub(r"[\\\"']", "", match[1])
    text = _NAMED.sub(lambda name: text_of(name[1]) or "?", bare)
    number = evaluate(text, lambda name: None) if re.fullmatch(r"[\d\s+*/%()-]*", text) else None
    return None if number is None else str(number)
