"""Launch files read, written again for the same framework and compared flag by flag.

    python -m tools.read_again FILE...      each file is a launch of its own

What a file sets otherwise than what is written from what was read of it is a silent error, or an
option that changes nothing: such differences are listed, and counted in the last line.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from planner.documents.problems import RequestError
from planner.frameworks.base import Unsupported
from planner.frameworks.read_results import Reading, Setting
from planner.frameworks.sources import framework_of, launch_at, launch_files, reading_of
from planner.inputs.requests.parser import parse_cluster

CLUSTER = "64x8xh100-sxm"
OPEN = "$"  # in a value that a file leaves open
# Options of data, schedules, logs and files, which a launch that is written anew has of its own.
APART = re.compile(
    r"(^|[_.])(data|dataset|tokenizer|vocab_file|merge_file|lr|min_lr|warmup|scheduler|num_warmup_steps|train_iters|"
    r"train_samples|max_steps|epochs?|eval|evals|split|log|logs?_\w+|logger|output|output_dir|save|load|seed|port|"
    r"master_port|run_name|dir|path|checkpointer|model_name_or_path|base_model|deepspeed_config|steps_per_print|"
    r"weight_decay|clip_grad|adam_\w+|init_method_std)($|[_.])"
)
NOT_WRITTEN = {("training", "tokens"), ("model", "name")}


@dataclass(frozen=True)
class Compared:
    """The differences of one file; refused: why it was not read or not written again."""

    file: str
    framework: str = ""
    refused: str = ""
    differences: tuple[str, ...] = ()


def compared(file: str) -> Compared:
    """A file against what is written from what was read of it."""
    try:
        files = launch_files(launch_at([file])[0])
        framework = framework_of(files, None)
        reading = reading_of(framework, files, parse_cluster(CLUSTER).accelerators)
        world = reading.plan.accelerators
        each = 8 if world % 8 == 0 else 4 if world % 4 == 0 else world if world < 8 else 1
        request = reading.request(parse_cluster(f"{world // each}x{each}xh100-sxm")).for_framework(
            framework.name
        )
        written = framework.write(request, reading.plan)
        again = reading_of(framework, written.files, world)
    except (RequestError, Unsupported) as error:
        return Compared(file, refused=str(error).replace("\n", "; "))
    return Compared(file, framework.name, differences=tuple(_differences(reading, again)))


def _differences(reading: Reading, again: Reading) -> Iterator[str]:
    """Fields that are read otherwise of the written files, then options with other values."""
    for part in ("model", "training", "plan"):
        one, other = getattr(reading, part).model_dump(), getattr(again, part).model_dump()
        for name in one:
            if (part, name) not in NOT_WRITTEN and one[name] != other[name]:
                yield f"{part}.{name}: {one[name]} read, {other[name]} of what is written"
    written = _by_name(again.settings)
    left = {_bare(one.name) for one in (*reading.unread, *reading.unknown)}
    for name, setting in _by_name(reading.settings).items():
        if name in left or name not in written or APART.search(name):
            continue
        if OPEN in str(setting.value):
            continue
        if _value(setting) != _value(written[name]):
            yield f"{setting.name} {setting.value}: {written[name].value} is written"


def _by_name(settings: Iterable[Setting]) -> Mapping[str, Setting]:
    return {_bare(one.name): one for one in settings}


def _bare(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _value(setting: Setting) -> object:
    """A value as it compares: numbers by size, words in lower case, a switch as true."""
    text = " ".join(setting.value) if isinstance(setting.value, tuple) else setting.value
    if text is None:
        return "true"
    try:
        return float(text)
    except ValueError:
        return text.strip("\"'").lower()


def main(arguments: list[str] | None = None) -> int:
    """Prints every file's differences, then how many files had none; 1 if any had."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("files", nargs="+", metavar="FILE")
    found = [compared(file) for file in parser.parse_args(arguments).files]
    for one in found:
        if one.refused:
            print(f"{one.file}: not compared: {one.refused[:200]}")
        for difference in one.differences:
            print(f"{one.file}: {one.framework}: {difference}")
    written = [one for one in found if not one.refused]
    differing = sum(bool(one.differences) for one in written)
    print(f"{len(found)} files, {len(written)} written again, {differing} with differences")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
