"""DeepSpeed's JSON config as settings: every key with its dotted path and line, known or not."""

from __future__ import annotations

import json
import re
from typing import Any

from cost_models.package_files import table
from planner.documents.answer import Reason
from planner.frameworks.arguments import Arguments
from planner.frameworks.read_results import Refusal, Setting, Unreadable

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|\n', re.DOTALL)


def known_keys() -> dict[str, Any]:
    """keys.json: the keys of each section, and the sections that refuse others."""
    return table("planner.frameworks.deepspeed", "keys.json")


def key_lines(text: str) -> dict[str, int]:
    """The line of every key of a JSON object, by its dotted path, except for those inside lists."""
    path: list[str | None] = []
    found: dict[str, int] = {}
    line, last = 1, ("", 1)
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in ("{", "["):
            path.append(None if token == "[" else "")
        elif token in ("}", "]") and path:
            path.pop()
        elif token == ":" and path and path[-1] is not None:
            path[-1] = last[0]
            if None not in path:
                found.setdefault(".".join(part for part in path if part), last[1])
        elif token[0] == '"':
            last = (token[1:-1], line)
        line += token.count("\n")
    return found


class JsonConfig:
    """The JSON of a launch: its settings, and refusals of those that DeepSpeed rejects.

    first: the line of the file on which the text begins.
    Raises Unreadable if it is not a JSON object.
    """

    def __init__(self, text: str, file: str, first: int, args: Arguments) -> None:
        self.args, self.file = args, file
        try:
            self.tree = json.loads(text)
        except json.JSONDecodeError as error:
            raise Unreadable(f"invalid JSON: {error.msg}", file, first + error.lineno - 1) from None
        except (RecursionError, ValueError) as error:
            raise Unreadable(f"unreadable JSON: {error}", file, first) from None
        if not isinstance(self.tree, dict):
            raise Unreadable("must be a JSON object", file, first)
        self.settings: dict[str, Setting] = {}
        self.unread: list[Setting] = []
        self.asked: set[str] = set()
        lines = key_lines(text)
        self._collect(self.tree, "", lines, first)

    def _collect(
        self, tree: dict[str, Any], section: str, lines: dict[str, int], first: int
    ) -> None:
        """Record the keys of a section; unknown keys are noted or refused."""
        known = known_keys()["sections"].get(section)
        for key, value in tree.items():
            path = f"{section}.{key}" if section else key
            setting = Setting(
                name=path,
                value=None if isinstance(value, dict) else json.dumps(value)[:200],
                file=self.file,
                line=first + lines.get(path, 1) - 1,
            )
            if known is not None and key not in known:
                self._unknown(setting, section)
            if isinstance(value, dict) and path in known_keys()["sections"]:
                self._collect(value, path, lines, first)
            else:
                self.settings[path] = setting

    def _unknown(self, setting: Setting, section: str) -> None:
        self.args.unknown.append(setting)
        if section in known_keys()["strict"]:
            self.refuse(f"{section} has no key {setting.name.rsplit('.', 1)[-1]}", setting)
        else:
            where = f"in {section}" if section else "at the top level"
            self.args.assume(
                f"{setting.file}:{setting.line}: DeepSpeed silently ignores the unknown key "
                f"{setting.name} {where}"
            )

    def refuse(
        self, text: str, setting: Setting | None, code: str = "framework_unsupported"
    ) -> None:
        reason = Reason(code=code, text=text)
        self.args.refusals.append(Refusal(reason=reason, setting=setting))

    def get(self, path: str) -> Any:
        """The value at a dotted path; None if absent."""
        self.asked.add(path)
        node: Any = self.tree
        for part in path.split("."):
            node = node.get(part) if isinstance(node, dict) else None
        return node

    def _wrong(self, path: str, value: Any, expected: str) -> None:
        filled = '; only Hugging Face\'s Trainer fills in "auto"' if value == "auto" else ""
        self.refuse(
            f"{path} is {json.dumps(value)[:80]}, must be {expected}{filled}",
            self.settings.get(path),
        )

    def integer(self, path: str, least: int = 0) -> int | None:
        """A whole number; None if absent or refused."""
        value = self.get(path)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 10**9:
            self._wrong(path, value, f"an integer of at least {least}")
            return None
        return value

    def switch(self, path: str, default: bool = False) -> bool:
        value = self.get(path)
        if value is None:
            return default
        if not isinstance(value, bool):
            self._wrong(path, value, "true or false")
            return default
        return value

    def name(self, path: str) -> str:
        """A text in lower case; empty if absent."""
        value = self.get(path)
        return value.lower() if isinstance(value, str) else ""

    def left(self) -> tuple[Setting, ...]:
        """The known keys that were not read."""
        unknown = {setting.name for setting in self.args.unknown}
        return tuple(
            setting
            for path, setting in self.settings.items()
            if path not in self.asked and path not in unknown
        )
