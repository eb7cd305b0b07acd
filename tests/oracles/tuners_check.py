"""Holds config.yaml of LLaMA-Factory, TRL or Axolotl against the parser of a checkout.

`python tests/oracles/tuners_check.py NAME CHECKOUT FILE...` prints a line (WRONG ...) for each
key that the parser does not take as it is said; needs what the checkout imports (LLaMA-Factory:
omegaconf and peft, whose folder may stand in PYTHONPATH).
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from pydantic import BaseModel

Parse = Callable[[str], tuple[Any, ...]]


def of_trl(checkout: str) -> Parse:
    """`trl sft --config FILE`, or `trl dpo` or `trl grpo`, on a CPU."""
    sys.path.insert(0, checkout)
    from trl.scripts import dpo, grpo, sft

    def parse(path: str) -> tuple[Any, ...]:
        words = ["--config", path, "--use_cpu", "true"]
        text = Path(path).read_text()
        script = grpo if "num_generations:" in text else dpo if "loss_type:" in text else sft
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
    # Its check of context parallelism imports this, which needs a GPU.
    sys.modules["ring_flash_attn"] = ModuleType("ring_flash_attn")
    from axolotl.utils.schemas.config import AxolotlInputConfig

    # The package of the plugin imports the rest of Axolotl.
    liger = runpy.run_path(f"{checkout}/src/axolotl/integrations/liger/args.py")["LigerArgs"]

    class Config(AxolotlInputConfig, liger):  # type: ignore[misc]
        """With the keys of its plugin for Liger, which it adds in this way."""

    def parse(path: str) -> tuple[Any, ...]:
        document = yaml.safe_load(Path(path).read_text())
        if unknown := document.keys() - Config.model_fields.keys():
            raise ValueError(f"not understood: {sorted(unknown)}")
        return (Config(**document),)

    return parse


def plain(value: Any) -> Any:
    """A parsed value as YAML has it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, list) and any(isinstance(one, BaseModel) for one in value):
        return [plain(one) for one in value]
    return sorted(value) if isinstance(value, list | set | tuple) else value


def told(held: Any, said: Any) -> Any:
    """What is held of the keys that are said."""
    if isinstance(held, dict) and isinstance(said, dict):
        return {key: told(held.get(key), value) for key, value in said.items()}
    if isinstance(held, list) and isinstance(said, list) and any(isinstance(s, dict) for s in said):
        return [told(*each) for each in zip(held, said, strict=True)]
    return held


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
            kwargs = "gradient_accumulation_kwargs"
            held = {kwargs: held[kwargs] if isinstance(held, dict) else getattr(held, kwargs)}
        if key == "cutoff_len":  # LLaMA-Factory packs one token less and pads to eight
            held = -(-held // 8) * 8
        # LLaMA-Factory splits a text at its commas.
        mapped = isinstance(value, list) and any(isinstance(one, dict) for one in value)
        listed = sorted(value) if isinstance(value, list) and not mapped else value
        taken = told(plain(held), value)
        if taken not in (listed, [value]):
            yield f"{path}: {key} is {taken!r}, {value!r} said"


def main(name: str, checkout: str, *paths: str) -> None:
    parse = {"trl": of_trl, "llama-factory": of_llama_factory, "axolotl": of_axolotl}[name](
        checkout
    )
    for path in paths:
        for line in wrong(parse, path):
            print(f"WRONG {line}")


if __name__ == "__main__":
    main(*sys.argv[1:])
