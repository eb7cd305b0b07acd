"""Accelerate bundles: its own launcher and plugins, real runs on CPU, refusals, and the reader."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from cost_models.catalog.models import model as preset
from cost_models.parameters import total_parameters
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner import frameworks
from planner.documents.request import PlanRequest
from planner.frameworks.accelerate import reader
from planner.frameworks.accelerate.peft import NAMES
from planner.huggingface.export.exporter import UNIFORM, config_of
from tests.fixtures.frameworks.accelerate import (
    CASES,
    COPIES,
    MODELS_HERE,
    RUNS,
    drawn,
    full,
)
from tests.fixtures.launches import FIRST_NODE, MODELS, launch, run_script, written

ACCELERATE = frameworks.get("accelerate")
ROOT = Path(__file__).parents[3]

Ask = Callable[[list[list[str]]], list[Any]]

# What the real launcher makes of a launch line, and what its plugins read from that environment.
REAL = """
import json, os, sys
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import FullyShardedDataParallelPlugin, TorchDynamoPlugin
from accelerate.utils.launch import prepare_multi_gpu_env
from accelerate.utils.launch import prepare_simple_launcher_cmd_env as simple_env

parser = launch_command_parser()
clean = dict(os.environ)
options = {o.lstrip("-").replace("-", "_"): a.nargs == 0
           for a in parser._actions for o in a.option_strings if a.dest != "help"}
from accelerate.commands.config.config_args import ClusterConfig
keys = list(ClusterConfig.__dataclass_fields__)
for asked in sys.stdin:
    answers = []
    for words in json.loads(asked):
        os.environ.clear()
        os.environ.update(clean)
        try:
            args, _, _ = _validate_launch_command(parser.parse_args(words))
            several = args.use_fsdp or args.multi_gpu
            env = prepare_multi_gpu_env(args) if several else simple_env(args)[1]
            answer = {
                "env": {k: v for k, v in env.items() if clean.get(k) != v},
                "processes": args.num_processes,
                "per_node": getattr(args, "nproc_per_node", None),
                "rank": args.machine_rank,
                "fsdp": args.use_fsdp,
                "mesh": args.use_parallelism_config,
            }
            os.environ.update(env)
            if args.use_fsdp:
                plugin = FullyShardedDataParallelPlugin()
                answer["plugin"] = {
                    "version": plugin.fsdp_version,
                    "reshard": plugin.reshard_after_forward,
                    "recompute": plugin.activation_checkpointing,
                    "offload": type(plugin.cpu_offload).__name__,
                    "offload_activations": plugin.activation_checkpointing_offload,
                    "wrap": getattr(plugin.auto_wrap_policy, "__name__", None),
                    "state": plugin.state_dict_type.name,
                    "broadcast": plugin.cpu_ram_efficient_loading,
                }
                mesh = ParallelismConfig()
                answer["sizes"] = mesh._sizes
                answer["total"] = mesh.total_size
                answer["axes"] = mesh._get_mesh()[0]
                answer["rotation"] = mesh.cp_handler and mesh.cp_handler.cp_comm_strategy
            dynamo = TorchDynamoPlugin()
            answer["dynamo"] = [dynamo.backend.value, dynamo.use_regional_compilation]
            answers.append(answer)
        except Exception as error:
            answers.append(f"{type(error).__name__}: {error}")
    print("ANSWERS" + json.dumps([answers, options, keys]), flush=True)
"""


@pytest.fixture(scope="module")
def ask_accelerate() -> Iterator[Ask]:
    """Asks the real launcher, which takes seconds to import, about launch lines."""
    with subprocess.Popen(
        [sys.executable, "-c", REAL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdin is not None
        assert launcher.stdout is not None
        asked, said = launcher.stdin, launcher.stdout

        def ask(lines: list[list[str]]) -> list[Any]:
            print(json.dumps(lines), file=asked, flush=True)
            found = (line for line in said if line.startswith("ANSWERS"))
            answers: list[Any] = json.loads(next(found).removeprefix("ANSWERS"))
            return answers

        yield ask
        asked.close()
    assert launcher.returncode == 0


def launch_line(folder: Path, request: PlanRequest, plan: ParallelPlan) -> list[str]:
    """The words after `accelerate launch`, as bash hands them over on the first node."""
    folder.mkdir()
    main = written(folder, ACCELERATE.write(request, plan))
    variables = {**FIRST_NODE, "MASTER_PORT": "29517"}
    ((_, command, *words),) = run_script(folder, main.name, variables=variables)
    assert command == "launch"
    return words


def expected(request: PlanRequest, plan: ParallelPlan) -> dict[str, Any]:
    """What the real launcher must have understood."""
    nodes = sum(group.nodes for group in request.cluster.groups)
    answer: dict[str, Any] = {
        "processes": plan.accelerators,
        "per_node": str(plan.accelerators // nodes) if plan.accelerators > 1 else None,
        "rank": 0,
        "fsdp": plan.zero_stage == 3,
        "mesh": plan.zero_stage == 3,
        "dynamo": ["INDUCTOR", True] if plan.compile else ["NO", False],
    }
    if plan.zero_stage == 3:
        shards = plan.dp_shard // plan.cp or plan.dp
        moe = request.model.moe
        sizes = {"dp_replicate": plan.dp // shards, "dp_shard": shards, "cp": plan.cp}
        answer |= {
            "plugin": {
                "version": 2,
                "reshard": plan.reshard_after_forward,
                "recompute": plan.recompute == "full",
                "offload": "CPUOffloadPolicy" if plan.offload_optimizer else "OffloadPolicy",
                "offload_activations": plan.offload_activations,
                "wrap": "transformer_auto_wrap_policy",
                "state": "SHARDED_STATE_DICT",
                "broadcast": moe is None or not moe.score_correction_bias,
            },
            "sizes": {**sizes, "tp": 1, "sp": 1},
            "total": plan.accelerators,
            "axes": [name for name, size in sizes.items() if size > 1],
            "rotation": {"p2p": "alltoall", "all_gather": "allgather"}[plan.cp_kind]
            if plan.cp > 1
            else None,
        }
    return answer


@pytest.mark.slow
def test_the_real_launcher_and_plugins_understand_every_case(
    tmp_path: Path, ask_accelerate: Ask
) -> None:
    lines = [launch_line(tmp_path / name, *case) for name, case in CASES.items()]
    answers, options, keys = ask_accelerate(lines)
    for name, answer in zip(CASES, answers, strict=True):
        assert isinstance(answer, dict), (name, answer)
        request, plan = CASES[name]
        assert answer.pop("env")["ACCELERATE_MIXED_PRECISION"] == request.training.precision
        assert answer == expected(request, plan), name
    assert {name for name, switch in options.items() if switch} == reader.SWITCHES
    assert {name for name, switch in options.items() if not switch} == reader.OPTIONS
    assert set(keys) == reader.KEYS


OTHER: dict[str, Any] = {
    "TRANSFORMER_BASED_WRAP": "SIZE_BASED_WRAP",
    "SHARDED_STATE_DICT": "FULL_STATE_DICT",
    "INDUCTOR": "EAGER",
    "allgather": "alltoall",
    "bf16": "fp16",
    "FSDP": "MULTI_GPU",
}
# One value only, which is its default too.
ONLY = {"compute_environment", "parallelism_config_cp_backend"}


@pytest.mark.slow
def test_every_key_takes_effect_and_a_wrong_one_is_refused(
    tmp_path: Path, ask_accelerate: Ask
) -> None:
    case = launch(
        cp=2,
        cp_kind="all_gather",
        offload_activations=True,
        compile=True,
        **RUNS,
        **full(MODELS["llama"]),
    )
    line = launch_line(tmp_path / "bundle", *case)
    document = yaml.safe_load((tmp_path / "bundle" / "accelerate.yaml").read_text())
    changed: dict[str, str] = {}

    def stored(name: str, value: Any) -> None:
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(value))
        changed[name] = str(path)

    for key, value in document.items():
        inner = value if isinstance(value, dict) else {key: value}
        for name, old in inner.items():
            if name in ONLY:
                continue
            new = not old if isinstance(old, bool) else OTHER[old] if isinstance(old, str) else 3
            whole = {**document, key: {**value, name: new} if isinstance(value, dict) else new}
            stored(name, whole)
    stored("extra", {**document, "reshard_after_forward": True})
    place = line.index("--config_file") + 1
    lines = [[*line[:place], path, *line[place + 1 :]] for path in changed.values()]
    (plain, *answers), _, _ = ask_accelerate([line, *lines])
    assert isinstance(plain, dict), plain
    for name, answer in zip(changed, answers, strict=True):
        assert answer != plain, name
    assert "unknown keys (['reshard_after_forward'])" in answers[-1]


@pytest.mark.slow
def test_why_tp_is_refused_still_holds() -> None:
    """What it imports for FSDP with tp, the installed transformers does not have."""
    import transformers  # noqa: F401  # the line below must fail for the name alone
    from accelerate import accelerator

    preparation = inspect.getsource(accelerator.Accelerator._prepare_tp)
    line = "from transformers.integrations.tensor_parallel import ReplicateParallel"
    assert line in preparation
    with pytest.raises(ImportError, match=r"cannot import name|tensor_parallel"):
        exec(line)


def oracle_parameters(config: dict[str, Any]) -> int:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    keys = {key: value for key, value in config.items() if key != "model_type"}
    built = transformers.AutoConfig.for_model(config["model_type"], **keys)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(built)
    model.tie_weights()
    assert type(model).__name__ == config["architectures"][0]
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_config_builds_the_planned_model(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    request, plan = CASES[case]
    config = json.loads(ACCELERATE.write(request, plan).files["config.json"])
    assert oracle_parameters(config) == total_parameters(request.model)


def test_every_family_is_written_by_some_model() -> None:
    qwen2_moe = changed("mixtral", qkv_bias=True)
    moe = qwen2_moe.moe
    assert moe is not None
    shared = {"shared_expert_ffn_hidden_size": 512, "shared_expert_gate": True}
    qwen2_moe = qwen2_moe.model_copy(update={"moe": moe.model_copy(update=shared)})
    olmo2 = changed("llama", qk_norm="full")
    found = {}
    names = (
        "gemma-2-9b", "gemma-3-27b", "falcon-7b", "mpt-7b", "bloom-176b", "nemotron-4-15b",
        "gpt-neox-20b", "deepseek-v2-lite", "glm-4.5", "minimax-m2.5", "olmo-7b", "olmoe-1b-7b",
        "phi-2", "gpt-j-6b", "starcoderbase", "starcoder2-7b", "stablelm-3b-4e1t", "aya-23-8b",
    )  # fmt: skip
    named = [preset(name).model_copy(update={"mtp_num_layers": 0}) for name in names]
    for model in (*MODELS_HERE.values(), qwen2_moe, olmo2, *named):
        config = config_of(model)
        assert config is not None
        found[config["model_type"]] = model
    assert set(found) == set(UNIFORM)


# Real runs.

NARROW: dict[str, Any] = {
    "num_layers": 2, "vocab_size": 128, "hidden_size": 64, "num_attention_heads": 4,
    "num_query_groups": 2, "head_dim": 16, "ffn_hidden_size": 96,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "top_k": 2, "expert_ffn_hidden_size": 96}
TINY: dict[str, dict[str, Any]] = {
    "llama": {**NARROW, "tied_embeddings": True},
    "gpt": {**NARROW, "num_query_groups": 4, "hidden_dropout": 0.0, "attention_dropout": 0.0},
    "deepseek": {"num_layers": 3, "vocab_size": 128},
    "mixtral": NARROW,
    "gpt-oss": {**NARROW, "head_dim": 32, "sliding_window": 16},
    "qwen2": NARROW,
    "qwen3": NARROW,
}


def changed(model: str, **update: Any) -> ModelSpec:
    return ModelSpec(**{**MODELS[model].model_dump(), **update})


def tiny(name: str) -> ModelSpec:
    model = MODELS_HERE[name].model_dump()
    if name in ("mixtral", "gpt-oss"):
        model["moe"] |= EXPERTS
    return ModelSpec(**{**model, **TINY[name]})


# PEFT's adapters, which stay in fp32 beside frozen weights in half precision.
LORA: dict[str, Any] = {"lora_rank": 4, "lora_targets": NAMES}
SMALL: dict[str, Any] = {"seq_length": 32, "global_batch_size": 16, "precision": "bf16"}


def run_bundle(folder: Path, request: PlanRequest, plan: ParallelPlan) -> list[float]:
    """The losses that the bundle prints when bash runs it on this machine."""
    main = written(folder, ACCELERATE.write(request, plan))
    shim = [str(ROOT / "tests/fixtures/accelerate_on_cpu")] if plan.accelerators > 1 else []
    result = subprocess.run(
        ["bash", main],
        capture_output=True,
        text=True,
        timeout=600,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": ":".join(shim),
            "TRAIN_ITERS": "3",
            "MASTER_PORT": "0",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        },
    )
    assert result.returncode == 0, result.stderr[-3000:]
    losses = re.findall(r"^step \d: loss ([\d.]+),", result.stdout, re.MULTILINE)
    assert len(losses) == 3, result.stdout
    return [float(loss) for loss in losses]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "tuned"), [("llama", {}), ("gpt", {}), ("deepseek", {}), ("llama", LORA)]
)
def test_shards_learn_what_copies_learn(name: str, tuned: dict[str, Any], tmp_path: Path) -> None:
    model, training = tiny(name), {**SMALL, **tuned}
    plans = {"copies": {**COPIES, **full(model)}, "shards": {**RUNS, **full(model)}}
    losses = {}
    for run, plan in plans.items():
        (tmp_path / run).mkdir()
        losses[run] = run_bundle(tmp_path / run, *launch(model, (1, 2), training=training, **plan))
    # The same weights, sequences and steps; autocast and FSDP round at different places.
    assert losses["shards"] == pytest.approx(losses["copies"], abs=0.02)


# States in host memory are left out: FSDP pins them, which needs an accelerator.
FEATURES: list[tuple[str, int, dict[str, Any]]] = [
    ("llama", 4, {"dp_shard": 2, "reshard_after_forward": False, "micro_batch_size": 2}),
    ("mixtral", 2, {}),
    ("gpt-oss", 2, {"attention_kernel": "unfused"}),
    ("qwen2", 2, {"offload_activations": True, **full(tiny("qwen2"))}),
    ("qwen3", 2, {"compile": True, **full(tiny("qwen3"))}),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "processes", "plan"), FEATURES)
def test_features_run(name: str, processes: int, plan: dict[str, Any], tmp_path: Path) -> None:
    case = launch(tiny(name), (1, processes), training=SMALL, **RUNS, **plan)
    # A loss of random tokens, of which there are 128.
    assert run_bundle(tmp_path, *case) == pytest.approx([4.85] * 3, abs=0.3)


@pytest.mark.exhaustive
def test_one_process_runs_without_any_help(tmp_path: Path) -> None:
    case = launch(tiny("llama"), (1, 1), training=SMALL, **COPIES)
    assert run_bundle(tmp_path, *case) == pytest.approx([4.85] * 3, abs=0.3)


@pytest.mark.exhaustive
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=drawn())
def test_drawn_models_have_the_planned_parameters(case: tuple[PlanRequest, ParallelPlan]) -> None:
    if not ACCELERATE.reasons(*case):
        config = json.loads(ACCELERATE.write(*case).files["config.json"])
        assert oracle_parameters(config) == total_parameters(case[0].model)
