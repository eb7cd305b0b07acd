"""Parts of a variable's text: `${x#*/}`, `${x%%.*}`, `${x//a/b}` and `${x:0:3}`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

# Wildcards outside quotes, which bash matches against files (quoted characters are \0 here).
WILDCARDS = re.compile(r"[*?]|\[[!^]?[^/][^]/]*\]")
# Unquoted values with wildcards that no file name would match: `[0]*3+[1]*58`, `key=[a]`,
# `Et|(t|)*6`, `M-M*-`.
NO_FILES = re.compile(r"[=|(),+]|\[\d+\]\*\d|^[A-Z*-]*[A-Z][A-Z*-]*$")
MAX_WORK = 100_000
_TRIMMED = re.compile(r"\$\{(\w+)(##?|%%?)(.+)\}", re.DOTALL)
_REPLACED = re.compile(r"\$\{(\w+)/([/#%]?)((?:[^/\\]|\\.)+)(?:/(.*))?\}", re.DOTALL)
_SLICED = re.compile(r"\$\{(\w+):[ (]*(-?\d{1,5})[ )]*(?::[ ]*(-?\d{1,5})[ ]*)?\}", re.ASCII)
_PIECES = re.compile(
    r"""\\(.)|'([^']*)'|"([^"$`\\]*)"|\$\{?(\w+)\}?|(\*)|(\?)|(\[[!^]?[^\]]+\])|([^$`])""",
    re.DOTALL,
)
# Operators whose result is what stands before the first match, or behind the last one: what is not
# known elsewhere in the text changes nothing.
OUTERMOST = ("##", "%%")


def part_of(
    source: str, held: Callable[[str], str | None], charge: Callable[[int], None]
) -> tuple[str, bool] | None:
    """The text of such an expansion, and whether it holds whatever marks stand elsewhere in it.

    held: the text of a variable; None where it is not set.  None for any other expansion, and for
    one that would take too long.
    """
    if found := _SLICED.fullmatch(source):
        text = held(found[1])
        return None if text is None else (_slice(text, int(found[2]), found[3]), False)
    trimmed = _TRIMMED.fullmatch(source)
    found = trimmed or _REPLACED.fullmatch(source)
    text = held(found[1]) if found else None
    if found is None or text is None:
        return None
    pieces = list(_translated(found[3], held))
    if not pieces or None in pieces:
        return None
    work = (len(text) + 1) ** (pieces.count(".*") + 1)
    if work > MAX_WORK:
        return None
    charge(work)
    pattern = "".join(str(one) for one in pieces)
    if trimmed:
        return _trim(text, found[2], pattern), found[2] in OUTERMOST
    with_what = _plain(found[4] or "", held)
    return None if with_what is None else (_replace(text, found[2], pattern, with_what), False)


def _slice(text: str, start: int, length: str | None) -> str:
    begin = max(len(text) + start, 0) if start < 0 else start
    if length is None:
        return text[begin:]
    size = int(length)
    return text[begin : len(text) + size if size < 0 else begin + size]


def _translated(pattern: str, held: Callable[[str], str | None]) -> Iterator[str | None]:
    """The pieces of a pattern as regular expressions; None for what is not known."""
    place = 0
    while place < len(pattern):
        found = _PIECES.match(pattern, place)
        if found is None:
            yield None
            return
        place = found.end()
        escaped, single, double, name, star, one, several, plain = found.groups()
        if name is not None:
            text = held(name)
            yield None if text is None else re.escape(text)
        elif star or one:
            yield ".*" if star else "."
        elif several:
            inner = several[1:-1].replace("\\", "\\\\").replace("[", "\\[")
            yield f"[^{inner[1:]}]" if inner[0] in "!^" else f"[{inner}]"
        else:
            yield re.escape(next(x for x in (escaped, single, double, plain) if x is not None))


def _plain(word: str, held: Callable[[str], str | None]) -> str | None:
    """A word without wildcards; None where it has what is not known."""
    pieces = []
    place = 0
    while place < len(word):
        found = _PIECES.match(word, place)
        if found is None:
            return None
        place = found.end()
        text = held(found[4]) if found[4] else next(
            one for one in (found[1], found[2], found[3], found[5], found[6], found[7], found[8])
            if one is not None
        )  # fmt: skip
        if text is None:
            return None
        pieces.append(text)
    return "".join(pieces)


def _trim(text: str, operator: str, pattern: str) -> str:
    """The text without the shortest or longest part at its beginning or end."""
    try:
        if operator in ("#", "##"):
            lazy = pattern.replace(".*", ".*?") if operator == "#" else pattern
            found = re.match(lazy, text, re.DOTALL)
            return text[found.end() :] if found else text
        before = "(.*)" if operator == "%" else "(.*?)"
        found = re.fullmatch(before + f"(?:{pattern})", text, re.DOTALL)
        return found[1] if found else text
    except re.error:  # a range that is none
        return text


def _replace(text: str, where: str, pattern: str, word: str) -> str:
    try:
        if where == "#":
            found = re.match(pattern, text, re.DOTALL)
            return word + text[found.end() :] if found else text
        if where == "%":
            found = re.fullmatch(f"(.*?)(?:{pattern})", text, re.DOTALL)
            return found[1] + word if found else text
        return re.sub(pattern, lambda _: word, text, count=0 if where else 1, flags=re.DOTALL)
    except re.error:
        return text
