"""Options that nobody understands: which of them may change what is trained."""

from __future__ import annotations

import pytest

from planner.frameworks.architecture import refuse
from planner.frameworks.read_results import Setting, Unreadable


def setting(name: str, value: str | None) -> Setting:
    return Setting(name=name, value=value, file="own.yaml", line=3)


@pytest.mark.parametrize("value", ["false", "0", "0.0", "none", ""])
def test_what_is_off_changes_nothing(value: str) -> None:
    refuse([setting("--fancy-attention-scale", value)])


@pytest.mark.parametrize("switch", ["is_enabled", "enabled", "enable", "active"])
def test_a_section_that_is_off_changes_nothing(switch: str) -> None:
    keys = [setting(f"model.product.{switch}", "false"), setting("model.product.layers", "[1, 2]")]
    refuse(keys)
    with pytest.raises(Unreadable, match=r"model\.product\.layers \[1, 2\]: not understood"):
        refuse([setting(f"model.product.{switch}", "true"), keys[1]])
    with pytest.raises(Unreadable, match=r"model\.others\.layers"):  # another section
        refuse([keys[0], setting("model.others.layers", "4")])
