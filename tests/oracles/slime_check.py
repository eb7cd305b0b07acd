"""What slime's own parser and checks, over Megatron-LM's, say to the words of launches.

    MEGATRON_LM_PATH=CHECKOUT SLIME_PATH=CHECKOUT python tests/oracles/slime_check.py < Q > A

Questions and answers are those of megatron_check.py.  Options of SGLang's engines are parsed by
SGLang, which is not here: left out, as slime leaves them out of this parser.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import megatron_check


class OfSlime(megatron_check.Judge):
    """Its stages `parse` and `validate` are slime's."""

    def parse(self) -> None:
        self.question["argv"] = list(without_engines(self.question["argv"]))
        super().parse()
        for name in ("debug_rollout_only", "debug_train_only", "load_debug_rollout_data"):
            setattr(self.args, name, None)  # parsed before all else
        self.args.train_backend = "megatron"

    def validate(self) -> None:
        from slime.backends.megatron_utils import arguments as core
        from slime.utils import arguments

        arguments.slime_validate_args(self.args)
        core.validate_args(self.args)
        self.found["slime"] = {
            name: getattr(self.args, name) for name in self.question.get("asks", ())
        }


def without_engines(words: list[str]) -> Any:
    """The words without --sglang-... and their values."""
    skipped = False
    for word in words:
        skipped = word.startswith("--sglang-") or (skipped and not word.startswith("--"))
        if not skipped:
            yield word


def import_all() -> None:
    """Megatron-LM's parser with slime's options, before the first fork."""
    megatron()
    sys.path.insert(0, os.environ["SLIME_PATH"])
    for name, has in (
        ("sglang", ()), ("sglang.srt", ()), ("sglang.srt.server_args", ("ServerArgs",)),
        ("sglang_router", ()), ("sglang_router.launch_router", ("RouterArgs",)),
    ):  # fmt: skip
        sys.modules[name] = types.ModuleType(name)
        for one in has:
            setattr(sys.modules[name], one, megatron_check.Idle)
    from megatron.training import arguments
    from slime.utils.arguments import get_slime_extra_args_provider

    get_slime_extra_args_provider()(arguments.add_megatron_arguments(None))


if __name__ == "__main__":
    megatron = megatron_check.import_all
    megatron_check.import_all, megatron_check.Judge = import_all, OfSlime
    megatron_check.main()
