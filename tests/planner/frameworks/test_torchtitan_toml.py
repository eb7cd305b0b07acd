"""torchtitan's TOML up to 0.2.2, of three generations, and one function of a registry module."""

from __future__ import annotations

import pytest

from planner.answers.lint.lint import lint
from planner.frameworks import get
from planner.frameworks.launch_files import CONFIG, GivenValues, LaunchFiles
from planner.frameworks.read_results import Reading, Unreadable
from planner.inputs.requests.models import parse_model
from planner.inputs.requests.parser import parse_cluster

TITAN = get("torchtitan")
# 0.1.0 to 0.2.2.
NEW = """\
[job]
description = "a run"

[model]
name = "llama3"
flavor = "70B"
converters = ["float8"]

[optimizer]
name = "AdamW"
lr = 3e-4

[training]
local_batch_size = 8
seq_len = 8192
steps = 1000
compile = true

[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
context_parallel_degree = 1

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""
# 2024.
OLD = """\
[model]
name = "llama3"
flavor = "8B"
norm_type = "fused_rmsnorm"

[training]
batch_size = 8
seq_len = 4096
data_parallel_degree = -1
tensor_parallel_degree = 2
compile = false

[experimental]
pipeline_parallel_degree = 4
pipeline_parallel_microbatches = 8
pipeline_parallel_schedule = "1f1b"

[activation_checkpoint]
mode = "full"
"""
SCRIPT = """\
#!/bin/bash
NGPU=${NGPU:-8}
CONFIG_FILE=${CONFIG_FILE:-"./train_configs/debug_model.toml"}
torchrun --nproc_per_node=${NGPU} train.py --job.config_file ${CONFIG_FILE} "$@"
"""


def read(files: dict[str, str], size: int | None = 64, given: GivenValues | None = None) -> Reading:
    assert TITAN.read is not None
    assert TITAN.recognises(files)
    return TITAN.read(LaunchFiles(files, given), size)


def test_the_sections_of_the_last_toml() -> None:
    reading = read({"c.toml": NEW})
    model, plan, training = reading.model, reading.plan, reading.training
    assert (model.num_layers, model.hidden_size, model.vocab_size) == (80, 8192, 128_256)
    assert (plan.tp, plan.dp, plan.dp_shard, plan.zero_stage) == (8, 8, 4, 3)
    assert (plan.sequence_parallel, plan.overlap_tp, plan.compile) == (True, True, True)
    assert (plan.recompute, plan.recompute_modules) == ("selective", ("op",))
    assert (plan.cross_entropy, plan.attention_kernel) == ("fused", "flash")
    assert (training.global_batch_size, training.seq_length) == (64, 8192)
    assert (training.precision, training.fp8_recipe) == ("fp8", "tensorwise")
    assert (reading.unknown, reading.refusals, reading.written) == ((), (), False)
    assert next(s.line for s in reading.settings if s.name == "training.seq_len") == 15
    rows = NEW + '\n[float8]\nrecipe_name = "rowwise"\n'
    assert read({"c.toml": rows}).training.fp8_recipe == "rowwise"


def test_the_sections_of_2024() -> None:
    reading = read({"c.toml": OLD})
    plan = reading.plan
    assert (plan.tp, plan.pp, plan.dp, plan.zero_stage) == (2, 4, 8, 3)
    assert (plan.micro_batch_size, reading.training.global_batch_size) == (1, 64)
    assert (plan.recompute, plan.recompute_num_layers, plan.compile) == ("full", 1, False)
    assert reading.refusals == ()
    usual = OLD.replace("pipeline_parallel_microbatches = 8\n", "")
    assert read({"c.toml": usual}).plan.micro_batch_size == 2  # as many as stages


def test_what_is_left_out_has_the_defaults_of_then() -> None:
    text = '[model]\nflavor = "8B"\n[training]\nseq_len = 4096\n'
    reading = read({"c.toml": text})
    assert (reading.plan.recompute, reading.training.global_batch_size) == ("selective", 512)
    assert any("one whole layer of every 2" in one for one in reading.assumed)
    none = text + '[activation_checkpoint]\nmode = "none"\n'
    assert read({"c.toml": none}).plan.recompute == "none"


def test_the_command_line_wins() -> None:
    script = SCRIPT.replace(
        '"$@"', "--parallelism.tensor-parallel-degree 4 --no-training.compile --training.steps=5"
    ).replace("--no-training.compile", "--training.no-compile")
    reading = read({"run.sh": script, "c.toml": NEW}, None)
    assert (reading.plan.tp, reading.plan.dp, reading.plan.compile) == (4, 2, False)
    assert (reading.nodes, reading.accelerators_per_node) == (1, 8)
    assert any("c.toml is taken for --job.config_file" in one for one in reading.assumed)
    two = {"run.sh": SCRIPT, "a.toml": NEW, "debug_model.toml": OLD}
    assert read(two, None).plan.pp == 4
    with pytest.raises(Unreadable, match=r"a\.toml, b\.toml"):
        read({"run.sh": SCRIPT, "a.toml": NEW, "b.toml": OLD}, None)
    word = SCRIPT.replace('"$@"', "stray")
    with pytest.raises(Unreadable, match=r"run.sh:4: 'stray' belongs to no option"):
        read({"run.sh": word, "c.toml": NEW}, None)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('flavor = "70B"', 'flavor = "70X"', r"c.toml:6: llama3 has no flavor '70X'.*405B"),
        ('name = "llama3"', 'name = "llama4"', r"c.toml:5: model.name is 'llama4'.*--model"),
        ('flavor = "70B"', 'flavor = "70B"\nmask_token = "x"', r"c.toml:7: model.mask_token"),
        ('flavor = "70B"', 'flavor = "70B"\nflavor = "8B"', r"c.toml:7: is not TOML: Cannot over"),
        ("seq_len = 8192", "seq_len = nan", r"c.toml:15: training.seq_len must be an integer"),
        ("seq_len = 8192", "seq_len = true", r"c.toml:15: training.seq_len must be an integer"),
        ("seq_len = 8192", "seq_len = " + "9" * 40, "seq_length"),
        ("seq_len = 8192", "seq_len = " + "9" * 5000, "a number or a nesting is too long"),
        ("seq_len = 8192", "seq_len = " + "[" * 5000, "c.toml: is not TOML"),
        ('mode = "selective"', 'mode = "some"', "c.toml:27: .*it is one of full, selective"),
        ('["float8"]', "3", "c.toml:7: model.converters must be a list of names"),
        ("steps = 1000", "num_moe_experts = 4", r"c.toml:16: training.num_moe_experts 4: not und"),
    ],
)
def test_what_cannot_be_is_named_with_its_line(before: str, after: str, says: str) -> None:
    with pytest.raises(Unreadable, match=says):
        read({"c.toml": NEW.replace(before, after)})


def test_a_degree_out_of_range_is_refused() -> None:
    reading = read(
        {"c.toml": NEW.replace("tensor_parallel_degree = 8", "tensor_parallel_degree = 0")}
    )
    assert any("at least 1" in one.reason.text for one in reading.refusals)


def test_a_model_that_is_given_is_taken_whatever_the_flavor() -> None:
    model, _ = parse_model("llama-2-7b")
    text = NEW.replace('name = "llama3"', 'name = "llama2"').replace("70B", "7B")
    reading = read({"c.toml": text}, given=GivenValues(model=model))
    assert (reading.model.num_layers, reading.plan.tp) == (32, 8)
    assert reading.training.precision == "fp8"


def test_lint_judges_it() -> None:
    answer = lint({"c.toml": NEW}, parse_cluster("8x8xh100-sxm"))
    assert answer.framework == "torchtitan"
    assert answer.verdict in ("fine", "does not fit")
    large = lint({"c.toml": NEW}, parse_cluster("1x8xh100-sxm"))
    assert "world_size" in {one.code for one in large.findings}


REGISTRY = """\
from torchtitan.models.llama3.config_registry import llama3_8b, llama3_70b
from torchtitan.trainer import Trainer


def small() -> Trainer.Config:
    return llama3_8b()


def large() -> Trainer.Config:
    return llama3_70b()
"""


def test_one_function_of_a_registry_module() -> None:
    with pytest.raises(Unreadable, match=r"which function is the config\? \(small, large\)"):
        read({"config_registry.py": REGISTRY})
    for name, layers in (("small", 32), ("large", 80)):
        given = GivenValues(values={CONFIG: name})
        assert read({"config_registry.py": REGISTRY}, given=given).model.num_layers == layers


def test_a_fork_may_say_its_vocabulary() -> None:
    """In whatever section; its name leaves no doubt."""
    reading = read({"c.toml": NEW.replace("seq_len = 8192", "seq_len = 8192\nvocab_size = 256")})
    assert reading.model.vocab_size == 256
    assert reading.unknown == ()
    assert "training.vocab_size 256: a fork's own, read as the model's vocab_size" in (
        reading.assumed
    )
