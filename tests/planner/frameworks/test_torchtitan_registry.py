"""torchtitan: registry modules that others wrote are read, none of them is run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.parameters import (
    total_parameters,
)
from cost_models.spec import ModelSpec
from planner import frameworks
from planner.frameworks.launch_files import CONFIG, GivenValues, LaunchFiles
from planner.frameworks.python.expressions import MAX_STEPS
from planner.frameworks.python.static_evaluation import Program
from planner.frameworks.read_results import Reading, Unreadable
from planner.frameworks.torchtitan import registry
from tests.fixtures.frameworks.torchtitan import (
    CASES,
)
from tests.fixtures.tiers import examples
from tests.oracles.torchtitan_registry import package_path
from tests.planner.frameworks.test_torchtitan import question

TITAN = frameworks.get("torchtitan")

HEAD = "from torchtitan.trainer import Trainer\n"
LLAMA8 = HEAD + "from torchtitan.models.llama3.config_registry import llama3_8b\n"
ATTRIBUTES = (
    LLAMA8
    + """
WORLD = {"tp": 2}

def config() -> Trainer.Config:
    c = llama3_8b()
    c.training.disable_cuda_graphs = True
    c.training.local_batch_size = 8
    c.parallelism.tensor_parallel_degree = WORLD["tp"]
    c.parallelism.pipeline_parallel_degree = 4
    c.activation_checkpoint = None
    return c
"""
)


def told(text: str, size: int | None = 16, arguments: str = "") -> Reading:
    """A module, and a script that runs it with more arguments where there are any."""
    files = {"mine.py": text}
    if arguments:
        files["run.sh"] = (
            f"torchrun --nproc_per_node {size} -m torchtitan.train --module mine "
            f"--config config {arguments}\n"
        )
        size = None
    assert TITAN.read is not None
    assert TITAN.recognises(files)
    return TITAN.read(files, size)


def test_a_config_of_torchtitan_with_attributes_set() -> None:
    reading = told(ATTRIBUTES)
    plan, model = reading.plan, reading.model
    assert (model.num_layers, model.hidden_size, model.num_query_groups) == (32, 4096, 8)
    assert total_parameters(model) == 8_030_261_248
    assert (plan.tp, plan.pp, plan.dp, plan.zero_stage) == (2, 4, 2, 3)
    assert (plan.micro_batch_size, reading.training.global_batch_size) == (1, 16)
    assert (plan.recompute, plan.sequence_parallel) == ("none", True)
    assert reading.training.seq_length == 8192
    # torchtitan counts the embedding and the head as a layer each.
    assert plan.stage_layers == (8, 9, 8, 7)
    assert any("8, 9, 8, 7" in text for text in reading.assumed)
    assert any("chunks" in text for text in reading.assumed)
    assert reading.refusals == ()
    found = reading.find("parallelism.tensor_parallel_degree")
    assert found is not None
    assert (found.value, found.file, found.line) == ("2", "mine.py", 10)


def test_the_command_line_wins() -> None:
    reading = told(
        ATTRIBUTES,
        16,
        "--parallelism.tensor_parallel_degree=4 --parallelism.pipeline-parallel-degree 1 "
        "--compile.enable --compile.components model --training.no-disable-cuda-graphs "
        "--training.global_batch_size 64 --parallelism.fsdp_reshard_after_forward never "
        "--metrics.log_freq 1 activation-checkpoint:full",
    )
    plan = reading.plan
    assert (plan.tp, plan.pp, plan.dp) == (4, 1, 4)
    assert (plan.compile, plan.cross_entropy, plan.recompute) == (True, "unfused", "full")
    assert not plan.reshard_after_forward
    assert (plan.micro_batch_size, reading.training.global_batch_size) == (8, 64)
    assert "metrics.log_freq" in {one.name for one in reading.unread}
    assert reading.refusals == ()
    assert (reading.nodes, reading.accelerators_per_node) == (1, 16)


def test_a_config_by_name_alone() -> None:
    script = (
        "torchrun --nnodes 2 --nproc_per_node 8 -m torchtitan.train --module deepseek_v3 "
        "--config deepseek_v3_16b --parallelism.expert_parallel_degree 8 "
    )
    assert TITAN.read is not None
    reading = TITAN.read({"run.sh": script}, None)
    assert reading.model.mla is not None
    assert reading.plan.ep == 8
    assert reading.model.moe is not None
    assert reading.model.moe.num_experts == 64
    with pytest.raises(Unreadable, match="has no config 'deepseek_v3_17b'"):
        TITAN.read({"run.sh": script.replace("16b", "17b")}, None)


def test_a_registry_module_of_torchtitan_is_read_by_itself() -> None:
    """It imports model_registry from beside it: the function's name says whose that is."""
    text = (package_path() / "models" / "qwen3" / "config_registry.py").read_text()
    files = LaunchFiles({"config_registry.py": text}, GivenValues(values={CONFIG: "qwen3_30b_a3b"}))
    assert TITAN.read is not None
    reading = TITAN.read(files, 64)
    assert (reading.model.num_layers, reading.plan.moe_dispatcher) == (48, "alltoall")
    assert any("taken from torchtitan's qwen3" in one for one in reading.assumed)
    own = text.replace("def qwen3_30b_a3b(", "def mine(")
    with pytest.raises(Unreadable, match="model_registry is not in torchtitan"):
        TITAN.read(LaunchFiles({"a.py": own}, GivenValues(values={CONFIG: "mine"})), 64)


def test_a_model_of_ones_own_by_the_helpers_of_torchtitan() -> None:
    text = (
        HEAD
        + """
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.models.common import Embedding, RMSNorm, compute_ffn_hidden_dim
from torchtitan.models.common.config_utils import make_gqa_config, make_ffn_config
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock
from torchtitan.protocols.model_spec import ModelSpec

def layers(n, dim, *, heads=8):
    result = []
    for i in range(n):
        result.append(
            Llama3TransformerBlock.Config(
                attention=make_gqa_config(dim=dim, n_heads=heads, n_kv_heads=heads // 4, rope=ROPE),
                feed_forward=make_ffn_config(
                    dim=dim, hidden_dim=compute_ffn_hidden_dim(dim, multiple_of=256)
                ),
            )
        )
    return result

def config() -> Trainer.Config:
    parts = [["tok_embeddings", "layers.0"], [f"layers.{i}" for i in range(1, 6)]]
    return Trainer.Config(
        model_spec=ModelSpec(
            model=Llama3Model.Config(dim=512, vocab_size=1000, layers=layers(6, 512))
        ),
        training=TrainingConfig(local_batch_size=4, seq_len=1024, disable_cuda_graphs=True),
        parallelism=ParallelismConfig(
            pipeline_parallel_degree=2,
            module_fqns_per_model_part=[parts[0], parts[1] + ["norm", "lm_head"]],
        ),
    )
"""
    )
    reading = told(text, 4)
    model = reading.model
    assert (model.num_layers, model.num_query_groups, model.ffn_hidden_size) == (6, 2, 1536)
    assert (reading.plan.first_stage_layers, reading.plan.last_stage_layers) == (1, 0)
    assert reading.refusals == ()


WRONG: list[tuple[str, str, str]] = [
    ("tensor_parallel_degree = WORLD", "tensor_parallel = WORLD", "has no parallelism.tensor_par"),
    ("disable_cuda_graphs = True", "disable_cuda_graphs = False", "CUDA graphs"),
    ("c.parallelism.tensor_parallel_degree = WORLD", "c.pipeline = WORLD", "has no pipeline"),
    ('WORLD["tp"]', "0", "must be at least 1"),
    ('WORLD["tp"]', "3", "is not the 16 accelerators"),
    ("local_batch_size = 8", "global_batch_size = 9", "not a multiple of local batch 1"),
    (
        "c.activation_checkpoint = None",
        'c.parallelism.pipeline_parallel_schedule = "dualpipe"',
        "no schedule 'dualpipe'",
    ),
    (
        "c.activation_checkpoint = None",
        "c.parallelism.pipeline_parallel_microbatch_size = 3",
        "pipeline micro-batches of 3",
    ),
    (
        "c.activation_checkpoint = None",
        "c.compile.enable_async_tensor_parallel = True",
        "needs compile.enable",
    ),
    (
        "c.activation_checkpoint = None",
        'c.parallelism.module_fqns_per_model_part = [["norm"]] * 4',
        "name 0 layers",
    ),
    (
        "c.activation_checkpoint = None",
        "c.parallelism.pipeline_parallel_layers_per_stage = 4",
        "do not divide over pp 4",
    ),
]


@pytest.mark.parametrize(("old", "new", "text"), WRONG, ids=[text for *_, text in WRONG])
def test_what_torchtitan_refuses_is_a_refusal(old: str, new: str, text: str) -> None:
    assert old in ATTRIBUTES
    refusals = told(ATTRIBUTES.replace(old, new)).refusals
    assert [one for one in refusals if text in one.reason.text], refusals


UNREADABLE: list[tuple[str, str]] = [
    (HEAD + "def config(:\n", "no Python"),
    (HEAD, "which function"),
    (HEAD + "def config() -> Trainer.Config:\n    return config()\n", "nest too deeply"),
    (HEAD + "def config() -> Trainer.Config:\n    return 3\n", "returns 3"),
    (LLAMA8 + "def config():\n    return Trainer.Config()\n", "model_spec is"),
    (ATTRIBUTES.replace('WORLD["tp"]', "int(open('x').read())"), "write the value out"),
    (ATTRIBUTES.replace('WORLD["tp"]', '"two"'), "must be an integer"),
    (ATTRIBUTES.replace('WORLD["tp"]', "10**30"), "write the value out"),
    (
        HEAD + "def config() -> Trainer.Config:\n"
        "    for a in range(90000):\n        for b in range(90000):\n            c = a\n",
        f"more than {MAX_STEPS} steps",
    ),
    (
        HEAD + "def config() -> Trainer.Config:\n    x = 'a'\n"
        "    for a in range(90):\n        x = x + x\n    return x\n",
        f"more than {MAX_STEPS} steps",
    ),
    (HEAD + "x = " + "(" * 5000 + ")" * 5000, "no Python"),
    (HEAD + "x = " + "-" * 50_000 + "1", "no Python"),
]


@pytest.mark.parametrize(("text", "found"), UNREADABLE, ids=[found for _, found in UNREADABLE])
def test_what_cannot_be_read_says_why(text: str, found: str) -> None:
    assert TITAN.read is not None
    with pytest.raises(Unreadable, match=found.replace("(", r"\(")):
        TITAN.read({"mine.py": text}, 16)


def test_nothing_of_a_module_is_run(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write = "open('pwned', 'w').write('x')"
    text = ATTRIBUTES.replace("WORLD =", f"{write}\nimport os; os.system('touch pwned')\nWORLD =")
    text = text.replace("c = llama3_8b()", f"{write}\n    c = llama3_8b()")
    reading = told(text)
    assert reading.plan.tp == 2
    assert any("is not followed" in note for note in reading.assumed)
    assert not (tmp_path / "pwned").exists()


def test_arithmetic_names_and_branches_are_followed() -> None:
    program = Program(
        "import a.b as c\n"
        "from m import K\n"
        "N = 2 ** 3 - 1\n"
        "def f(x, *rest, y=3, **more):\n"
        "    if x > 2 and not rest:\n"
        "        x += y\n"
        "    return [x, len(rest), sorted, K.Config(z=x).z, more['w'], N // 2, f'{x}-{y}']\n"
        "def g():\n"
        "    a, (b) = f(4, w=1), 5\n"
        "    return a[:1] if unknown else a\n"
        "def h():\n"
        "    return [f(4, w=1)[0], f(1, 2, w={'k': 1}['k'])[1], 7 if N in range(9) else 8]\n",
        "x.py",
    )
    assert program.call("h") == [7, 1, 7]


def test_toml_and_other_files_are_told_apart() -> None:
    assert TITAN.read is not None
    script = "torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file x.toml\n"
    with pytest.raises(
        Unreadable, match=r"--job.config_file is x.toml, .* is not among the files: give it"
    ):
        TITAN.read({"run.sh": script, "x.toml": "[model]\n"}, None)
    with pytest.raises(Unreadable, match="no script calls a training program"):
        TITAN.read({"run.sh": "echo\n"}, None)
    assert not TITAN.recognises({"train.py": "import torch\n"})


@pytest.mark.slow
def test_the_stored_registry_is_that_of_the_installed_torchtitan() -> None:
    from tests.oracles.torchtitan_registry import document

    assert document() == registry.document()


@pytest.mark.parametrize(
    "most",
    [
        pytest.param(1, id="the smallest of each package", marks=pytest.mark.slow),
        pytest.param(None, id="all", marks=pytest.mark.exhaustive),
    ],
)
def test_flavors_have_the_parameters_that_torchtitan_builds(most: int | None) -> None:
    def size(flavor: tuple[str, Any]) -> float:
        return total_parameters(ModelSpec(**flavor[1]))

    rows = [
        (package, flavor, model)
        for package, row in registry.document()["models"].items()
        for flavor, model in sorted(row["flavors"].items(), key=size)[:most]
    ]
    counts = ask_flavors([[package, flavor] for package, flavor, _ in rows])
    for (package, flavor, model), count in zip(rows, counts, strict=True):
        assert total_parameters(ModelSpec(**model)) == count, (package, flavor)


def ask_flavors(names: Sequence[Sequence[str]]) -> list[int]:
    """Parameters of torchtitan's own models, built on the meta device."""
    from importlib import import_module

    import torch

    counts = []
    for package, flavor in names:
        spec = import_module(f"torchtitan.models.{package}").model_registry(flavor)
        with torch.device("meta"):
            built = spec.model.build()
        counts.append(sum({id(w): w.numel() for w in built.parameters()}.values()))
    return counts


PIECES = (
    "", "(", ")", "[", "]", ":", ",", ".", "=", "*", "**", "%", "-", "lambda x: x", "None", "c",
    "0", "-1", "1e400", "10**18", "'x' * 10**9", "[0] * 10**9", "[c for c in c]", "f'{c}'",
    "{**c}", "*c", "if c:\n        ", "while True:\n        ", "del c", "c.x.y.z", "c()", "\n",
    "config()", "int('9' * 9999)", "range(10**12)", "max([])", "[].append(c)", "import os", "\t",
    "\x00", "é", "c = c\n    ", "replace(c, training=3)", "Trainer.Config(model_spec=c)",
    "class A: pass\n    ", "@c\n    ", "list(range(10**12))", "c in range(10**12)",
    "list(range(-(10**18), 9 * 10**18))",
)  # fmt: skip
ADDED_ARGUMENTS = (
    "--training.seq_len", "--training.seq_len=x", "--parallelism.tensor_parallel_degree -3",
    "--compile.components=", "activation-checkpoint:other", "--", "-x", "stray", "--a.b.c 1",
    "--parallelism.module_fqns_per_model_part 3", "--parallelism", "--training.steps $X",
    "--parallelism.pipeline_parallel_degree 99999999999999999999",
    "--parallelism.pipeline_parallel_layers_per_stage 0",
    "--parallelism.pipeline_parallel_first_stage_less_layers 99",
)  # fmt: skip


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_whatever_stands_in_a_module_it_is_read_or_the_reason_is_given(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([ATTRIBUTES, question(*CASES["gpt-oss"])["module"]]))
    for _ in range(data.draw(st.integers(0, 3))):
        start = data.draw(st.integers(0, len(text)))
        stop = start + data.draw(st.sampled_from([0, 0, 1, 3, 10, 100]))
        text = text[:start] + data.draw(st.sampled_from(PIECES)) + text[stop:]
    words = " ".join(data.draw(st.lists(st.sampled_from(ADDED_ARGUMENTS), max_size=3)))
    call = f"torchrun --nproc_per_node 16 -m torchtitan.train --module mine {words}\n"
    assert TITAN.read is not None
    with suppress(Unreadable):
        assert TITAN.read({"mine.py": text, "run.sh": call}, None).plan.runtime == "torch"
