"""NeMo 2's performance scripts, as they resolve their options and as the reader does."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import Any

import pytest

from planner.frameworks.bash import Argument
from planner.frameworks.megatron_bridge import nemo2
from planner.frameworks.megatron_bridge import nemo2_performance as performance
from planner.frameworks.read_results import Unreadable
from tests.tools.checkouts import checkout

DRAWN = {
    "compute_dtype": ("bf16", "fp8"), "fp8_recipe": ("ds", "cs", "mxfp8", "ss"),
    "finetuning": ("lora", "sft"), "num_gpus": ("8", "16", "64", "128", "192", "1024"),
    "gpus_per_node": ("4", "8"), "tensor_parallel_size": ("1", "2", "4", "8"),
    "pipeline_parallel_size": ("1", "2", "3", "4", "8", "16"),
    "context_parallel_size": ("1", "2"), "expert_parallel_size": ("1", "8"),
    "virtual_pipeline_parallel_size": ("1", "2", "4", "5"), "micro_batch_size": ("1", "2"),
    "expert_tensor_parallel_size": ("1", "2"), "global_batch_size": ("64", "256"),
    "cuda_graphs": ("true", "no"), "use_mcore_fsdp": ("yes", "0"), "recompute_layers": ("0", "5"),
    "activation_offload_layers": ("0", "3"), "recompute_modules": ("mlp",),
}  # fmt: skip
# What the table leaves out, and two overlaps of weight gradients that are not costed.
LEFT_OUT = ("model.tp_comm_overlap_disable_qkv", "model.disable_parameter_transpose_cache")


def questions(count: int) -> list[tuple[str, dict[str, str]]]:
    """Launches: half of them with few options, as people start the scripts."""
    draw, found = random.Random(18), []
    for _ in range(count):
        options = {"gpu": draw.choice(("h100", "b200", "gb200"))}
        for name in draw.sample(list(DRAWN), draw.choice((1, 2, 3, draw.randint(4, 12)))):
            options[name] = draw.choice(DRAWN[name])
        found.append((draw.choice(list(performance.table()["scripts"])), options))
    return found


def ours(name: str, options: dict[str, str]) -> dict[str, Any] | str:
    words = [word for key, value in options.items() for word in (f"--{key}", value)]
    place = Argument(name, "run.sh", 1)
    try:
        said = performance.options([Argument(word, "run.sh", 1) for word in words], {}, place)
        return performance.resolved(name, said, nemo2.table()["recipes"])[1]
    except Unreadable as error:
        return error.text


@pytest.mark.exhaustive
def test_values_are_those_that_the_scripts_resolve() -> None:
    asked = questions(1500)
    own = str(checkout("NVIDIA/NeMo"))
    command = [sys.executable, "-m", "tests.oracles.nemo_performance", own, "answers"]
    done = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    same = 0
    for (name, options), real in zip(asked, json.loads(done.stdout), strict=True):
        found = ours(name, options)
        if isinstance(real, str):
            assert isinstance(found, str), (name, options, real)
        elif isinstance(found, str):
            # A batch of one, or stages, that nothing states.
            assert "give --micro_batch_size" in found, (name, options, found)
        else:
            keys = {*found, *real} - {*LEFT_OUT}
            assert not {k for k in keys if found.get(k) != real.get(k)}, (name, options)
            same += 1
    assert same > 400
