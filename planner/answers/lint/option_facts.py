"""Facts about options that the readers do not need: options without effect, required variables.

Read from Megatron-LM core 0.16 to main (0.20), DeepSpeed 0.16 to 0.19 and Megatron-DeepSpeed of
July 2025.
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.package_files import table


@dataclass(frozen=True)
class Ignored:
    """An option that has an effect only together with one of others, and what happens without.

    spoiled: an option and its value with which it has no effect.
    """

    option: str
    needs: tuple[str, ...]
    why: str
    spoiled: tuple[str, str] = ("", "")


IGNORED: dict[str, tuple[Ignored, ...]] = {
    framework: tuple(Ignored(**row) for row in rows)
    for framework, rows in table(__package__ or "", "option_facts.json")["ignored"].items()
}
