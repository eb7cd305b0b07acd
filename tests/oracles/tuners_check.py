"""Holds config.yaml of LLaMA-Factory, TRL or Axolotl against the parser of a checkout.

`python tests/oracles/tuners_check.py NAME CHECKOUT FILE...` prints a line (WRONG ...) for each
key that the parser does not take as it is said; needs what the checkout imports (LLaMA-Factory:
omegaconf and peft, whose folder may stand in PYTHONPATH).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

Parse = Callable[[str], tuple[Any, ...]]


def of_trl(checkout: str) -> Parse:
    """`trl sft --config FILE`, or `trl dpo`, on a CPU."""
    sys.path.insert(0, checkout)
    from trl.scripts import dpo, sft

    def parse(path: str) -> tuple[Any, ...]:
        words = ["--config", path, "--use_cpu", "true"]
        script = dpo if "loss_type:" in Path(path).read_text() else sft
        *found, left = script.make_parser().parse_args_and_config(
            args=words, return_remaining_strings=True
        )
        if left:
            raise ValueError(f"not understood: {left}")
        return tuple(found)

    return parse


def of_llama_factory(checkout: str) -> Parse:
    """`src/train.py FILE`, on a CPU."""
    os.environ["DISABLE_VERSION_CHECK"] = "1"  # it pins an older transformers
    sys.path.insert(0, os.path.join(checkout, "src"))
    from llamafactory.hparams.parser import _TRAIN_ARGS
    from transformers import HfArgumentParser

    def parse(path: str) -> tuple[Any, ...]:
        document = {**yaml.safe_load(Path(path).read_text()), "use_cpu": True}
        found: tuple[Any, ...] = HfArgumentParser(_TRAIN_ARGS).parse_dict(document)
        return found

    return parse


def of_axolotl(checkout: str) -> Parse:
    """The schema of `axolotl train FILE`, which drops keys that it does not know."""
    sys.path.insert(0, os.path.join(checkout, "src"))
    from axolotl.utils.schemas.config import AxolotlInputConfig

    def parse(path: str) -> tuple[Any, ...]:
        document = yaml.safe_load(Path(path).read_text())
        if unknown := document.keys() - AxolotlInputConfig.model_fields.keys():
            raise ValueError(f"not understood: {sorted(unknown)}")
        return (AxolotlInputConfig(**document),)

    return parse


def plain(value: Any) -> Any:
    """A parsed value as YAML has it."""
    if isinstance(value, Enum):
        return value.value
    return sorted(value) if isinstance(value, list | set | tuple) else value


def wrong(parse: Parse, path: str) -> Iterator[str]:
    """What of the file is not taken as it is said."""
    try:
        found = parse(path)
    except (ValueError, TypeError, SystemExit) as error:
        yield f"{path}: {error}"
        return
    for key, value in yaml.safe_load(Path(path).read_text()).items():
        held = next((getattr(one, key) for one in found if hasattr(one, key)), None)
        if key == "accelerator_config":
            held = {"gradient_accumulation_kwargs": held.gradient_accumulation_kwargs}
        if key == "cutoff_len":  # LLaMA-Factory packs one token less and pads to eight
            held = -(-held // 8) * 8
        # LLaMA-Factory splits a text at its commas.
        listed = sorted(value) if isinstance(value, list) else value
        if plain(held) != listed and plain(held) != [value]:
            yield f"{path}: {key} is {plain(held)!r}, {value!r} said"


def main(name: str, checkout: str, *paths: str) -> None:
    parse = {"trl": of_trl, "llama-factory": of_llama_factory, "axolotl": of_axolotl}[name](
        checkout
    )
    for path in paths:
        for line in wrong(parse, path):
            print(f"WRONG {line}")


if __name__ == "__main__":
    main(*sys.argv[1:])
