"""The guides of docs/ as pages of the service, at /docs/requests and so on."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

# In a wheel they lie beside this file, in a checkout at its root.
_FOLDERS = (Path(__file__).parent / "guide_files", Path(__file__).parent.parent / "docs")


@cache
def guides() -> dict[str, str]:
    """Title of each guide by its name, which is its file's without `.md`."""
    return {
        file.stem: file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        for file in sorted(_folder().glob("*.md"))
    }


@cache
def guide_html(name: str) -> str:
    """The body of a guide as HTML.  Raises KeyError for a name that is none of `guides()`."""
    guides()[name]
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse((_folder() / f"{name}.md").read_text(encoding="utf-8"))
    for token in (child for parent in tokens for child in parent.children or ()):
        if token.type == "link_open":
            target = str(token.attrs["href"])
            if target.startswith("../"):  # a file of the repository, which the service has not
                token.attrs = {"title": target.removeprefix("../")}
            elif "://" not in target:
                token.attrs = {"href": target.replace(".md", "", 1)}
    return str(markdown.renderer.render(tokens, markdown.options, {}))


def _folder() -> Path:
    return next(folder for folder in _FOLDERS if folder.is_dir())
