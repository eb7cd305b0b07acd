"""MaxText configs: keys it has, its own pyconfig, the mesh, and every refusal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cost_models.parameters import total_parameters
from cost_models.spec import ModelSpec
from planner import frameworks
from planner.documents.request import PlanRequest
from planner.frameworks import rules
from planner.frameworks.maxtext.mesh import mesh, slices
from planner.frameworks.maxtext.reader import KEYS
from planner.frameworks.read_results import Unreadable
from planner.huggingface.named_models import find
from tests.fixtures.frameworks import legal_cases
from tests.fixtures.frameworks.maxtext import CASES, case, on, tpus, two_slices
from tests.fixtures.launches import INTERLEAVED, MODELS, TP2, run_script, unreached, written
from tests.tools.checkouts import checkout, environment

MAXTEXT = frameworks.get("maxtext")
ORACLE = Path(__file__).parents[2] / "oracles" / "maxtext_check.py"
AXES = ("data", "fsdp", "context", "tensor_sequence", "expert")


def config(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(MAXTEXT.write(*CASES[name]).files["config.yml"])
    return found


@pytest.mark.parametrize("name", CASES)
def test_every_key_is_its_own_and_the_mesh_holds_every_device(name: str) -> None:
    said = config(name)
    assert set(said) <= KEYS
    devices = 1
    for axis in AXES:
        inside, between = (said.get(f"{net}_{axis}_parallelism", 1) for net in ("ici", "dcn"))
        devices *= inside * between
    assert devices == CASES[name][1].accelerators


def test_slices_are_joined_by_replicas_first() -> None:
    request, plan = CASES["llama-two-slices"]
    assert slices(request.cluster) == 2
    assert mesh(request.cluster, plan).between == (2, 1)
    request, plan = CASES["llama-shards-over-slices"]
    assert mesh(request.cluster, plan).between == (1, 2)
    assert config("llama-shards-over-slices")["dcn_fsdp_parallelism"] == 2


def test_kernels_are_those_of_the_device() -> None:
    assert (config("llama-tpu")["attention"], config("llama-tpu")["hardware"]) == ("flash", "tpu")
    assert config("qwen2-gpu")["attention"] == "cudnn_flash_te"
    assert config("llama-gpu-replicas")["attention"] == "dot_product"
    assert config("llama-offloaded")["decoder_layer_input"] == "offload"


@pytest.mark.parametrize("name", ["llama2-7b", "mixtral-8x7b"])
@pytest.mark.parametrize(
    ("policy", "repeats_attention", "repeats_mlp"),
    [("minimal", True, False), ("minimal_with_context", False, False),
     ("minimal_flash", False, False), ("save_dot_except_mlp", True, True),
     ("save_dot_except_mlpwi", True, True), ("save_dot_with_context_except_mlp", False, True)],
)  # fmt: skip
def test_a_policy_is_the_modules_that_it_does_not_keep(
    name: str, policy: str, repeats_attention: bool, repeats_mlp: bool
) -> None:
    text = f"ici_fsdp_parallelism: 16\nper_device_batch_size: 1\nmodel_name: {name}\n"
    assert MAXTEXT.read is not None
    reading = MAXTEXT.read({"run.yml": text + f"remat_policy: {policy}\n"}, 16)
    plan = reading.plan
    assert plan.recompute == "selective"
    assert ("core_attn" in plan.recompute_modules) == repeats_attention
    assert bool({"op", "mlp", "moe"} & set(plan.recompute_modules)) == repeats_mlp
    request, _ = case(reading.model)
    written = yaml.safe_load(MAXTEXT.write(request, plan).files["config.yml"])["remat_policy"]
    assert written == {
        "minimal_flash": "minimal_with_context", "save_dot_except_mlpwi": "save_dot_except_mlp",
    }.get(policy, policy)  # fmt: skip


def test_all_that_a_policy_keeps_is_offloaded() -> None:
    """Else the host has the layer inputs, and the device all the rest: 65 of 80 GiB for 70B."""
    selective = {"recompute": "selective", "recompute_modules": ("core_attn",)}
    request, plan = case(offload_activations=True, **selective)
    files = MAXTEXT.write(request, plan).files
    said = yaml.safe_load(files["config.yml"])
    assert (said["remat_policy"], said["decoder_layer_input"]) == ("custom", "offload")
    assert said["mlpwi_0"] == said["query_proj"] == "offload"
    assert "context" not in said
    assert MAXTEXT.read is not None
    assert MAXTEXT.read(files, 16).plan.recompute_modules == ("core_attn",)
    assert MAXTEXT.read(files, 16).plan.offload_activations
    kept = files["config.yml"].replace("query_proj: offload", "query_proj: device")
    reading = MAXTEXT.read({**files, "config.yml": kept}, 16)
    assert reading.plan.recompute_modules == ("core_attn",)
    assert not reading.plan.offload_activations
    assert any("query_proj are kept on the device" in one for one in reading.assumed)


def test_one_process_on_every_host_finds_the_others(tmp_path: Path) -> None:
    made = MAXTEXT.write(*CASES["qwen2-gpu"])
    written(tmp_path, made)
    ((launcher, *call),) = run_script(tmp_path, made.main)
    assert (launcher, call[:2]) == ("python3", ["-m", "maxtext.trainers.pre_train.train"])
    assert call[2] == str(tmp_path / "config.yml")
    script = made.files["launch.sh"]
    assert 'JAX_COORDINATOR_IP="$MASTER_ADDR"' in script
    assert "COORDINATOR" not in MAXTEXT.write(*CASES["llama-tpu"]).files["launch.sh"]


def test_a_config_of_its_own_is_read_over_its_defaults() -> None:
    text = "base_config: base.yml\nbase_num_decoder_layers: 8\nici_tensor_parallelism: 4\n"
    text += "per_device_batch_size: 2\nno_such_key: 1\n"
    assert MAXTEXT.read is not None
    assert MAXTEXT.recognises({"run.yml": text})
    reading = MAXTEXT.read({"run.yml": text}, 16)
    assert (reading.model.num_layers, reading.model.hidden_size) == (8, 2048)
    plan = reading.plan
    assert (plan.tp, plan.dp, plan.zero_stage, plan.recompute) == (4, 4, 3, "full")
    assert plan.micro_batch_size == 8
    assert [one.name for one in reading.unknown] == ["no_such_key"]
    for broken, size, why in (
        ({"run.yml": text}, None, "give a cluster"),
        ({"run.yml": text + "model_name: my-llama-4b\n"}, 16, "write its keys out"),
        ({"run.yml": text + "ici_expert_parallelism: many\n"}, 16, "must be a whole number"),
        ({"run.sh": ""}, 16, "there is no YAML"),
    ):
        with pytest.raises(Unreadable, match=why):
            MAXTEXT.read(broken, size)


@pytest.mark.parametrize(
    ("name", "preset"),
    [("llama2-7b", "llama-2-7b"), ("gemma2-9b", "gemma-2-9b"), ("deepseek3-671b", "deepseek-v3"),
     ("mixtral-8x22b", "mixtral-8x22b"), ("qwen3-30b-a3b", "qwen3-30b-a3b")],
)  # fmt: skip
def test_a_model_is_named_as_maxtext_names_it(name: str, preset: str) -> None:
    assert MAXTEXT.read is not None
    text = f"ici_fsdp_parallelism: 8\nper_device_batch_size: 1\nmodel_name: {name}\n"
    assert MAXTEXT.read({"run.yml": text}, 8).model == find(preset)


CALLS = (
    "python3 -m MaxText.train MaxText/configs/base.yml {}",
    "python3 MaxText/train.py MaxText/configs/base.yml {}",
    'python3 multihost_runner.py --TPU_PREFIX=$NAME --COMMAND="cd maxtext; python3 -m MaxText.train'
    ' MaxText/configs/base.yml {}"',
    'gcloud compute tpus tpu-vm ssh $NAME --command="python MaxText/train.py'
    ' MaxText/configs/base.yml {} > log 2>&1"',
)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("beside", [True, False])
def test_what_a_call_overrides_counts(call: str, beside: bool) -> None:
    said = "max_target_length=4096 per_device_batch_size=3 base_num_decoder_layers=36"
    files = {"train.sh": f"{call.format(said)}\n"}
    if beside:
        files["base.yml"] = "base_num_decoder_layers: 16\nper_device_batch_size: 12.0\n"
    assert MAXTEXT.recognises(files)
    assert MAXTEXT.read is not None
    reading = MAXTEXT.read(files, 8)
    assert (reading.model.num_layers, reading.training.seq_length) == (36, 4096)
    assert (reading.plan.micro_batch_size, reading.training.global_batch_size) == (3, 24)
    assert ["base.yml is not among" in one for one in reading.assumed] == [True] * (not beside)


def test_defaults_beside_a_script_that_does_not_train_are_no_run() -> None:
    files = {"convert.sh": "python3 llama_ckpt.py --base a\n", "base.yml": "head_dim: 64\n"}
    assert MAXTEXT.read is not None
    with pytest.raises(Unreadable, match=r"convert\.sh has no call of MaxText's train\.py"):
        MAXTEXT.read(files, 8)


def test_a_batch_that_nothing_states_is_that_of_its_defaults() -> None:
    assert MAXTEXT.read is not None
    reading = MAXTEXT.read({"model.yml": "base_num_decoder_layers: 8\n"}, 8)
    assert (reading.plan.micro_batch_size, reading.training.global_batch_size) == (12, 96)
    assert "per_device_batch_size: not set, 12 as in base.yml" in reading.assumed


def test_the_second_axis_of_fsdp_shards_too() -> None:
    assert MAXTEXT.read is not None
    text = "per_device_batch_size: 2\nbase_num_decoder_layers: 8\n"
    text += "ici_fsdp_parallelism: 4\nici_fsdp_transpose_parallelism: 2\n"
    reading = MAXTEXT.read({"run.yml": text}, 8)
    assert (reading.plan.dp, reading.plan.zero_stage, reading.plan.dp_shard) == (8, 3, 0)
    assert reading.training.global_batch_size == 16
    open_ = MAXTEXT.read(
        {"run.yml": text.replace("fsdp_parallelism: 4", "fsdp_parallelism: -1")}, 32
    )
    assert (open_.plan.dp, open_.training.global_batch_size) == (32, 64)


def test_a_named_model_with_other_layers() -> None:
    assert MAXTEXT.read is not None
    named = "model_name=llama2-70b per_device_batch_size=1 "
    call = {"train.sh": CALLS[0].format(named + "base_num_decoder_layers=4")}
    assert MAXTEXT.read(call, 8).model.num_layers == 4
    with pytest.raises(Unreadable, match="base_emb_dim 1024 changes llama-2-70b"):
        MAXTEXT.read({"train.sh": CALLS[0].format(named + "base_emb_dim=1024")}, 8)
    text = "ici_fsdp_parallelism: 8\nper_device_batch_size: 1\nmodel_name: mixtral-8x7b\n"
    found = MAXTEXT.read({"run.yml": text + "base_num_decoder_layers: 10\n"}, 8)
    assert found.model.num_layers == 32
    assert "base_num_decoder_layers 10 gives way" in found.assumed[0]
    with pytest.raises(Unreadable, match="ici_pipeline_parallelism is 4: this axis is not read"):
        MAXTEXT.read({"run.yml": text + "ici_pipeline_parallelism: 4\n"}, 8)


def test_a_call_that_leaves_a_deciding_key_open_asks_for_it() -> None:
    assert MAXTEXT.read is not None
    files = {"train.sh": CALLS[0].format("model_name=$MODEL per_device_batch_size=1")}
    with pytest.raises(Unreadable, match=r"model_name is \$MODEL.*--set MODEL="):
        MAXTEXT.read(files, 8)


def changed(name: str, **update: Any) -> ModelSpec:
    return ModelSpec(**{**MODELS[name].model_dump(), **update})


FP16 = {"precision": "fp16", "gradient_dtype": "fp16"}
REFUSED: list[tuple[str, tuple[PlanRequest, Any]]] = [
    ("learned positions", case("gpt")),
    ("no latent attention", case("deepseek-v3")),
    ("a norm and a bias on queries", case(changed("qwen2", qk_norm="head"))),
    ("runtime is jax, not torch", case(runtime="torch")),
    ("steps after the backward pass", case(training={"optimizer_in_backward": True})),
    ("its optimizers are", case(training={"optimizer": "muon"})),
    ("master weights and states are always fp32", case(training={"optimizer_state_dtype": "bf16"})),
    ("not fp16", case(training=FP16)),
    ("reduced in bf16", case(training={"gradient_reduce_dtype": "fp32"})),
    ("gradients are fp32 or bf16", case(training=FP16)),
    ("a loop in lockstep", case(**INTERLEAVED)),
    ("tp needs sequence_parallel", case(tp=2)),
    ("etp is tp", on(tpus(), case("mixtral", **{**TP2, "ep": 2}))),
    ("XLA compiles every step", case(compile=False)),
    ("overlap_tp is false", case(overlap_tp=True, **TP2)),
    ("overlap_ep is false", case("mixtral", ep=2, overlap_ep=True)),
    (
        "overlap_grad_reduce is true, not false; overlap_param_gather",
        case(overlap_grad_reduce=False, overlap_param_gather=False),
    ),
    ("fp32 copy of the logits", case(cross_entropy="fused")),
    ("splash attention", case(attention_kernel="flash2")),
    ("Tokamax", case(cp=2, cp_kind="p2p")),
    ("2 x cp = 4 parts", case(cp=2, training={"seq_length": 2046})),
    ("not deepep", case("mixtral", ep=2, moe_dispatcher="deepep")),
    ("only together with weights", case(zero_stage=2)),
    ("context and expert axes", case(zero_stage=1, cp=2)),
    ("spans all replicas", case(zero_stage=1, dp_shard=4)),
    ("frees gathered weights", case(reshard_after_forward=False)),
    ("more than one rank", case(dp_shard=1)),
    ("2 slices do not divide", on(two_slices(), case("mixtral", ep=16))),
    (
        "rounds down to a smaller batch",
        case("llama", (5, 11), tp=11, sequence_parallel=True, micro_batch_size=3),
    ),
    ("or core_attn+mlp, not mlp", case(recompute="selective", recompute_modules=("mlp",))),
    ("one policy for all layers", case(recompute="full", recompute_method="uniform")),
    ("activation offload needs recompute", case(offload_activations=True)),
    ("offloaded, or of none", case(offload_activations=True, offload_num_layers=3)),
]


@pytest.mark.parametrize(("text", "refused"), REFUSED, ids=[text for text, _ in REFUSED])
def test_refusals(text: str, refused: tuple[PlanRequest, Any]) -> None:
    request, plan = refused
    if text == "etp is tp":
        plan = plan.model_copy(update={"etp": 1})
    assert [one.text for one in MAXTEXT.reasons(request, plan) if text in one.text]


def test_every_rule_is_reached_by_a_refusal() -> None:
    cases = [one for _, one in REFUSED]
    apart = [(c[0], c[1].model_copy(update={"etp": 1})) for c in cases]
    assert unreached(MAXTEXT, [*cases, *apart]) <= {rules.EQUAL_NODES}


@pytest.mark.exhaustive
def test_its_own_pyconfig_accepts_every_case_and_every_legal_draw() -> None:
    """MAXTEXT_PYTHON: an interpreter with jax and omegaconf; without it, that of the tests."""
    own = environment(MAXTEXT_PATH=checkout("AI-Hypercomputer/maxtext"))
    drawn = legal_cases("maxtext", 600)
    assert len(drawn) >= 100
    asked = [*CASES.values(), *drawn]
    questions = [
        {
            "config": MAXTEXT.write(*one).files["config.yml"],
            "devices": one[1].accelerators,
            "slices": slices(one[0].cluster),
            "axes": ["fsdp", "tensor_sequence"],
        }
        for one in asked
    ]
    result = subprocess.run(
        [os.environ.get("MAXTEXT_PYTHON", sys.executable), ORACLE],
        env=own,
        input="\n".join(map(json.dumps, questions)),
        capture_output=True,
        text=True,
        timeout=1200,
    )
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(answers) == len(asked), result.stderr
    for (request, plan), answer in zip(asked, answers, strict=True):
        assert answer["error"] == ""
        batch = plan.micro_batch_size * plan.dp
        assert answer["micro_batch_size_to_train_on"] == batch
        assert answer["global_batch_size_to_train_on"] == request.training.global_batch_size
        assert answer["ici"]["tensor_sequence"] == plan.tp


def test_a_scale_multiplies_the_sizes() -> None:
    text = "ici_fsdp_parallelism: 16\nper_device_batch_size: 1\nglobal_parameter_scale: {}\n"
    assert MAXTEXT.read is not None
    sizes = {}
    for scale in (1, 2, 4, 8, 16):
        model = MAXTEXT.read({"config.yml": text.format(scale)}, 16).model
        sizes[scale] = (model.num_layers, model.hidden_size, model.num_attention_heads)
    assert sizes == {
        1: (16, 2048, 16), 2: (16, 2048, 32), 4: (16, 4096, 32), 8: (32, 4096, 32),
        16: (32, 4096, 64),
    }  # fmt: skip
    with pytest.raises(Unreadable, match="is 3, which is no power of two"):
        MAXTEXT.read({"config.yml": text.format(3)}, 16)
    named = text.format(2) + "model_name: llama2-7b\n"
    with pytest.raises(Unreadable, match="scales llama2-7b, which is then another model"):
        MAXTEXT.read({"config.yml": named}, 16)


def test_the_scale_and_the_plain_mlp_of_2023() -> None:
    """Its 52B on two v4-384: `scale` multiplied every size, and one activation has no gate."""
    text = (
        "scale: 4\nbase_num_decoder_layers: 8\nbase_emb_dim: 3072\nbase_mlp_dim: 12288\n"
        "base_num_heads: 8\nhead_dim: 256\nvocab_size: 32768\nmlp_activations: [relu]\n"
        "ici_fsdp_parallelism: 16\nper_device_batch_size: 1\n"
    )
    assert MAXTEXT.read is not None
    model = MAXTEXT.read({"config.yml": text}, 16).model
    assert (model.num_layers, model.hidden_size, model.gated_mlp) == (32, 12288, False)
    assert total_parameters(model) == pytest.approx(52e9, rel=0.02)
    assert MAXTEXT.read(
        {"config.yml": text.replace("mlp_activations: [relu]\n", "")}, 16
    ).model == (model)


def test_slices_that_a_cluster_decides_multiply_the_axis_of_each() -> None:
    text = "base_config: base.yml\nmodel_name: llama2-7b\nper_device_batch_size: 1\n"
    text += "ici_data_parallelism: 8\nici_fsdp_parallelism: 4\ndcn_data_parallelism: -1\n"
    for size, replicas in ((32, 32), (8, 32), (64, 64)):  # of fewer than one slice: one slice
        plan = MAXTEXT.read({"run.yml": text}, size).plan if MAXTEXT.read else None
        assert plan is not None
        assert (plan.dp, plan.dp_shard) == (replicas, 4)


def test_a_script_says_what_its_environment_decides() -> None:
    call = "python3 -m MaxText.train base.yml per_device_batch_size=${BATCH:-2} model_name="
    assert MAXTEXT.read is not None
    found = MAXTEXT.read({"run.sh": f"{call}llama2-7b\n"}, 8)
    assert any("the environment could set have their defaults: BATCH" in o for o in found.assumed)
    with pytest.raises(Unreadable, match="model_name is empty"):
        MAXTEXT.read({"run.sh": f"NAME=${{NAME:-}}\n{call}$NAME\n"}, 8)


def test_a_config_over_that_of_its_server_trains_nothing() -> None:
    assert MAXTEXT.read is not None
    text = 'base_config: "inference/inference_jetstream.yml"\nmodel_name: "llama2-70b"\n'
    with pytest.raises(Unreadable, match="base_config serves a model: it trains nothing"):
        MAXTEXT.read({"run.yml": f"{text}ici_tensor_parallelism: 8\n"}, 8)


def test_heads_by_the_name_of_older_releases() -> None:
    assert MAXTEXT.read is not None
    text = "base_num_decoder_layers: 8\nper_device_batch_size: 1\nbase_num_heads: 8\n"
    model = MAXTEXT.read({"run.yml": text}, 8).model
    assert (model.num_attention_heads, model.num_query_groups) == (8, 8)


def test_a_command_that_is_kept_in_a_variable() -> None:
    text = (
        'n=8\ncommand="python -u MaxText/train.py MaxText/configs/base.yml \\\n'
        '  model_name=llama2-7b per_device_batch_size=3 max_target_length=1024"\n'
        "seq 0 7 | xargs -P $n -I {} bash -c '$1' _ \"$command\"\n"
    )
    assert MAXTEXT.recognises({"run.sh": text})
    assert MAXTEXT.read is not None
    reading = MAXTEXT.read({"run.sh": text}, 8)
    assert (reading.training.seq_length, reading.plan.micro_batch_size) == (1024, 3)
    assert reading.find("per_device_batch_size").line == 3  # type: ignore[union-attr]


def test_a_distillation_is_no_training_of_the_default_model() -> None:
    assert MAXTEXT.read is not None
    text = "base_config: base.yml\nstudent_overrides: {model_name: llama3.1-8b}\n"
    text += "teacher_overrides: {model_name: llama3.1-8b}\nici_fsdp_parallelism: 8\n"
    with pytest.raises(Unreadable, match="teacher_overrides: it distils from another model"):
        MAXTEXT.read({"run.yml": text}, 8)


def test_a_config_of_reinforcement_learning_is_no_training_of_the_default_model() -> None:
    assert MAXTEXT.read is not None
    text = "base_config: base.yml\nloss_algo: grpo\nici_fsdp_parallelism: 8\n"
    with pytest.raises(Unreadable, match="loss_algo: it is of reinforcement learning"):
        MAXTEXT.read({"rl.yml": text}, 8)


def test_the_defaults_by_themselves_are_a_config() -> None:
    assert MAXTEXT.read is not None
    text = "base_num_decoder_layers: 16\nper_device_batch_size: 12.0\n"
    files = {"base.yml": text, "download_dataset.sh": "gsutil cp a b\n"}
    assert MAXTEXT.read(files, 8).plan.micro_batch_size == 12
