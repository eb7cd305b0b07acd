"""The guides of docs/ as pages of the service, at /docs/requests and so on."""

from __future__ import annotations

import posixpath
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

# In a wheel they lie beside this file, in a checkout at its root.
_FOLDERS = (Path(__file__).parent / "guide_files", Path(__file__).parent.parent / "docs")


@cache
def guides() -> dict[str, str]:
    """Title of each guide by its name, which is its path without `.md`."""
    return {
        name: (_folder() / f"{name}.md").read_text("utf-8").partition("\n")[0].removeprefix("# ")
        for name in sorted(_names(".md"))
    }


@cache
def pictures() -> dict[str, bytes]:
    """The drawings of the guides, by their path without `.svg`."""
    return {name: (_folder() / f"{name}.svg").read_bytes() for name in _names(".svg")}


@cache
def guide_html(name: str) -> str:
    """The body of a guide as HTML.  Raises KeyError for a name that is none of `guides()`."""
    guides()[name]
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse((_folder() / f"{name}.md").read_text(encoding="utf-8"))
    for token in (child for parent in tokens for child in parent.children or ()):
        if token.type == "link_open":
            token.attrs = {**_link(str(token.attrs["href"]), posixpath.dirname(name))}
    return str(markdown.renderer.render(tokens, markdown.options, {}))


def _link(target: str, folder: str) -> dict[str, str]:
    """The attributes of a link of a guide in this folder."""
    path, mark, anchor = target.partition("#")
    if "://" in target or not path:
        return {"href": target}
    file = posixpath.normpath(posixpath.join(folder, path))
    if file.removesuffix(".md") in guides():
        return {"href": f"{path.removesuffix('.md')}{mark}{anchor}"}
    # A file of the repository, which the service has not.
    return {"title": file.removeprefix("../") if file.startswith("../") else f"docs/{file}"}


def _names(suffix: str) -> list[str]:
    """The paths of files below docs/ that end so, without their ending."""
    files = (file.relative_to(_folder()) for file in _folder().rglob(f"*{suffix}"))
    return [file.with_suffix("").as_posix() for file in files]


def _folder() -> Path:
    return next(folder for folder in _FOLDERS if folder.is_dir())
