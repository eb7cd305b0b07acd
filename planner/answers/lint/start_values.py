"""Values that contradict each other, for which a program stops at its start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.answers.lint.findings import Finding
from planner.answers.lint.linted_launch import LintedLaunch, Place, at, finding
from planner.frameworks.config_files import json_value
from planner.frameworks.deepspeed.json_config import key_lines
from planner.frameworks.read_results import Setting, Unreadable

RATES, VALUES = "learning_rate_schedule", "deepspeed_values"
# Key of DeepSpeed's JSON -> the Trainer's options that must say the same
# (transformers/integrations/deepspeed.py, HfTrainerDeepSpeedConfig.trainer_config_process).
_MATCHED = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
    "optimizer.params.lr": "learning_rate",
    "optimizer.params.weight_decay": "weight_decay",
    "optimizer.params.eps": "adam_epsilon",
    "scheduler.params.warmup_max_lr": "learning_rate",
    "bf16.enabled": "bf16",
    "fp16.enabled": "fp16",
}
_PRODUCT = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def learning_rates(launch: LintedLaunch) -> Iterator[Finding]:
    """Rates and lengths of Megatron-LM's schedule.

    Source: megatron/core/optimizer_param_scheduler.py, which asserts them, and the steps of
    megatron/training/training.py, get_optimizer_param_scheduler.
    """
    rate = _number(launch, "--lr")
    for name in ("--min-lr", "--lr-warmup-init"):
        other = _number(launch, name)
        if rate is not None and other is not None and other[0] > rate[0]:
            text = f"{name} {other[1].value} is above --lr {rate[1].value}, which it must not be"
            yield finding(RATES, "error", text, at(other[1]))
    for unit in ("iters", "samples"):
        decay = _number(launch, f"--lr-decay-{unit}") or _number(launch, f"--train-{unit}")
        warmup = _number(launch, f"--lr-warmup-{unit}")
        if decay is not None and warmup is not None and 0 < decay[0] <= warmup[0]:
            text = (
                f"{warmup[1].name} {warmup[1].value} must be less than {decay[1].name} "
                f"{decay[1].value}, over which the rate decays"
            )
            yield finding(RATES, "error", text, at(warmup[1]))
    share = _number(launch, "--lr-warmup-fraction")
    if share is not None and share[0] >= 1:
        text = "the warm-up must be less than all of the steps over which the rate decays"
        yield finding(RATES, "error", text, at(share[1]))


def _number(launch: LintedLaunch, name: str) -> tuple[float, Setting] | None:
    """The number that an option states, and where."""
    said = launch.reading.find(name)
    value = _as_number(said.value) if said is not None else None
    return (value, said) if said is not None and value is not None else None


def _as_number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def deepspeed_values(launch: LintedLaunch) -> Iterator[Finding]:
    """Values of the DeepSpeed JSON of transformers' Trainer that its options contradict."""
    said = _option(launch, "deepspeed")
    if said is None or not isinstance(said.value, str) or launch.framework.name == "deepspeed":
        return
    last = said.value.rsplit("/", 1)[-1]
    name = next((one for one in launch.files if one.rsplit("/", 1)[-1] == last), None)
    if name is None or not name.endswith(".json"):
        return
    try:
        tree = json_value(launch.files[name], name)
    except Unreadable:
        return  # the reader says so
    if not isinstance(tree, dict):
        return
    lines = key_lines(launch.files[name])

    def wrong(text: str, key: str) -> Finding:
        return finding(VALUES, "error", text, Place(name, lines.get(key, 1), key))

    yield from (wrong(*one) for one in _own_contradictions(tree, _world(launch)))
    yield from (wrong(*one) for one in _mismatches(launch, tree))


def _world(launch: LintedLaunch) -> int:
    return launch.request.cluster.accelerators


def _own_contradictions(tree: Mapping[str, Any], world: int) -> Iterator[tuple[str, str]]:
    """What DeepSpeed itself refuses (runtime/config.py, _batch_assertion; bf16 beside fp16)."""
    batch, micro, steps = (tree.get(name) for name in _PRODUCT)
    if all(isinstance(one, int) for one in (batch, micro, steps)):
        assert isinstance(micro, int)
        assert isinstance(steps, int)
        if batch != micro * steps * world:
            yield (
                f"train_batch_size {batch} is not {micro} sequences x {steps} steps x {world} "
                f"ranks = {micro * steps * world}",
                _PRODUCT[0],
            )
    if _value(tree, "bf16.enabled") is True and _value(tree, "fp16.enabled") is True:
        yield "bf16 and fp16 are both enabled, of which DeepSpeed takes one", "fp16.enabled"


def _mismatches(launch: LintedLaunch, tree: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What differs from the Trainer's options (trainer_config_finalize raises)."""
    for key, option in _MATCHED.items():
        value, said = _value(tree, key), _option(launch, option)
        if value is None or value == "auto" or said is None:
            continue
        if isinstance(value, bool):
            stated: Any = said.value is None or str(said.value).lower() in ("true", "1", "yes")
        else:
            stated = _as_number(said.value)
        if stated is not None and stated != value:
            yield (
                f"{key} is {_words(value)}, {said.name} {_words(said.value)}: the Trainer wants "
                'the same, or "auto" here',
                key,
            )
    batch, world = tree.get(_PRODUCT[0]), _world(launch)
    micro = _number_of(launch, _MATCHED[_PRODUCT[1]])
    steps = _number_of(launch, _MATCHED[_PRODUCT[2]]) or 1
    if isinstance(batch, int) and micro is not None and batch != micro * steps * world:
        yield (
            f"train_batch_size is {batch}, the Trainer's options make {micro:g} sequences x "
            f"{steps:g} steps x {world} ranks = {micro * steps * world:g}: it wants the same, or "
            '"auto" here',
            _PRODUCT[0],
        )


def _number_of(launch: LintedLaunch, option: str) -> float | None:
    """The number that an option of the Trainer states."""
    said = _option(launch, option)
    return None if said is None else _as_number(said.value)


def _words(value: Any) -> str:
    return "" if value is None else str(value).lower()


def _value(tree: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path; None if absent."""
    node: Any = tree
    for part in path.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _option(launch: LintedLaunch, name: str) -> Setting | None:
    """An option of the Trainer, on a command line or in a file."""
    spelled = (name, f"--{name}", f"--{name.replace('_', '-')}")
    return next(filter(None, map(launch.reading.find, spelled)), None)
