"""Commands of a script that set variables from what they read: read, mapfile and getopts."""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Sequence
from itertools import pairwise, zip_longest

from planner.frameworks.bash.conditions import plain_text
from planner.frameworks.bash.programs import Programs
from planner.frameworks.bash.tree import Simple, Value


class Reads(Programs, ABC):
    """Evaluation of what a script reads."""

    def reads(
        self, name: str, words: list[Value], names: list[str | None], command: Simple
    ) -> bool:
        """Set the variables of read and the like; only those of a here-string are known.

        False where getopts finds no further option.
        """
        if name == "getopts":
            return self.option_of_the_script(names, words)
        wanted = [one for one in names if one and re.fullmatch(r"[A-Za-z_]\w*", one, re.ASCII)]
        text = self.here_string(command)
        if not wanted or (_whole(names) and self.here_document(wanted[-1], command)):
            return True
        if name != "read" or text is None:
            parts = [self.unknown(f"${one}") for one in wanted]
        elif _into_array(names):
            cells = self.split(text, None)
            self.variables[wanted[-1]] = [((cell, command.line),) for cell in cells]
            return True
        else:
            parts = self.split(text, len(wanted) - 1)
        for one, part in zip_longest(wanted, parts, fillvalue=""):
            self.variables[one] = ((part, command.line),)
        return True

    def here_string(self, command: Simple) -> str | None:
        """The text after `<<<`; None if there is none or it is unknown."""
        strings = [one.target for one in command.redirects if one.operator == "<<<"]
        return self.known(plain_text(self.value(strings[-1]))) if strings else None

    def here_document(self, name: str, command: Simple) -> bool:
        """Set a variable to the text of a here-document; False if there is none."""
        bodies = [one.body for one in command.redirects if one.operator in ("<<", "<<-")]
        if bodies:
            self.variables[name] = self.value(bodies[-1])
        return bool(bodies)

    def split(self, text: str, most: int | None) -> list[str]:
        """The fields into which `read` splits a line; most: the maximum number of splits."""
        line = text.partition("\n")[0]
        value = self.lookup("IFS", self.line, "IFS")
        separators = None if value is None else plain_text(value)
        if separators == "" or (most == 0 and separators and separators.strip()):
            return [line]
        if separators is None or not separators.strip():
            return line.strip().split(None, -1 if most is None else most)
        return re.split(f"[{re.escape(separators)}]", line, maxsplit=most or 0)

    def option_of_the_script(self, names: Sequence[str | None], words: Sequence[Value]) -> bool:
        """Set getopts' variable to the next option of the script or function; False at their end.

        Each option is a word of its own, or one with its value.
        """
        letters, name = (*names[:2], None, None)[:2]
        given = words[2:] or self.positional
        place = self.known(plain_text(self.lookup("OPTIND", 0, "OPTIND") or ())) or ""
        at = int(place) if re.fullmatch(r"[1-9]\d{0,3}", place) else 1
        option = re.match(r"-([^-:])(.*)", plain_text(given[at - 1]) if at <= len(given) else "")
        if not letters or not name or option is None:
            return False
        if f"{option[1]}:" in letters:
            after = given[at] if at < len(given) else ()
            self.variables["OPTARG"] = ((option[2], self.line),) if option[2] else after
            at += not option[2]
        self.variables["OPTIND"] = ((str(at + 1), self.line),)
        self.variables[name] = ((option[1] if option[1] in letters else "?", self.line),)
        return True


def _into_array(names: Sequence[str | None]) -> bool:
    return any(one and re.fullmatch(r"-\w*a", one) for one in names)


def _whole(names: Sequence[str | None]) -> bool:
    """Whether `read -d ''` reads to the end, not to the end of a line."""
    said = [one for one in names if one is not None]
    return any(re.fullmatch(r"-\w*d", one) and not value for one, value in pairwise(said))
