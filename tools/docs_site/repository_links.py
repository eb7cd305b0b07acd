"""Links of docs/ that lead out of it: a site has no files of the repository, so it names them."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, /, *, page: Any, files: Any, **_: Any) -> str:
    """The page; in place of a link to a file that the site has not, its path."""
    folder = posixpath.dirname(page.file.src_uri)

    def shown(match: re.Match[str]) -> str:
        words, target, _ = match.groups()
        place = posixpath.normpath(posixpath.join(folder, target))
        if files.get_file_from_path(place) is not None:
            return match[0]
        if not place.startswith("../"):
            return match[0]  # a mistake, which the strict build reports
        path = place.removeprefix("../")
        return f"{words} (`{path}`)" if words.strip("`") != path else f"`{path}`"

    return _LINK.sub(shown, markdown)
