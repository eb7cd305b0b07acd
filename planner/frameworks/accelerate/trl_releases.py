"""What TRL's configurations have as defaults, by its release."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from planner.frameworks.pinned_releases import Release, pinned

# The pull request that made each the default, and the first release that has it.
CHECKPOINTS: Release = (0, 22)  # huggingface/trl #3510, August 2025
CHUNKS: Release = (1, 7)  # huggingface/trl #5846, June 2026
_RENAMED: Release = (0, 20)  # #3704 removed max_seq_length, which #2895 had renamed to max_length
_OLD_KEY = "max_seq_length"


@dataclass(frozen=True)
class Defaults:
    """Whether layers are recomputed, and whether the loss of SFT is taken in chunks.

    why: how the release is known; empty where it is not, and the newest is taken.
    """

    checkpoints: bool = True
    chunks_loss: bool = True
    why: str = ""

    @property
    def notes(self) -> list[str]:
        """What is said of a release whose defaults are not the newest."""
        return (
            [f"{self.why}: the defaults are its own"] if self.why and not self.chunks_loss else []
        )


def defaults(files: Mapping[str, str], keys: Container[str]) -> Defaults:
    """The defaults of the release that a launch has; keys: those of its configuration."""
    if (pin := pinned(files, "trl")) is not None:
        release, why = pin.release, f"TRL {pin.said} is pinned"
    elif _OLD_KEY in keys:
        release, why = (0, 19), f"{_OLD_KEY} is a key of TRL before 0.20"
    else:
        return Defaults()
    return Defaults(release >= CHECKPOINTS, release >= CHUNKS, why)
