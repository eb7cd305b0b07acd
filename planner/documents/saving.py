"""Files that a person asked for: what cannot be written is a RequestError."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from planner.documents.problems import refuse, shown


def write_picture(path: Path, data: bytes) -> None:
    """Write what a person asked to see, over what was there; RequestError where that cannot be."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise refuse("", "cannot_write", f"cannot write {path}: {error.strerror}") from None


def write_files(files: Mapping[str, str], folder: Path) -> list[Path]:
    """Write files into a folder that has none of them; where they are now.

    Raises RequestError where that cannot be.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise refuse("", "cannot_write", f"{folder} is not a folder")
        present = [name for name in files if (folder / name).exists()]
        if present:
            raise refuse("", "file_exists", f"{folder} already has {', '.join(present)}")
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            if text.startswith("#!"):
                path.chmod(0o755)
    except OSError as error:
        detail = f"cannot write {shown(str(error.filename or folder))}: {error.strerror}"
        raise refuse("", "cannot_write", detail) from None
    return [folder / name for name in files]
