"""Megatron-Bridge's launches read back: recipes by name, and what is laid over them."""

from __future__ import annotations

import re

import pytest

from planner.answers.lint.lint import lint
from planner.frameworks import get
from planner.frameworks.bash import evaluate
from planner.frameworks.launch_files import GivenValues, LaunchFiles
from planner.frameworks.megatron_bridge import recipes
from planner.frameworks.read_results import Reading, Unreadable
from planner.inputs.requests.models import parse_model
from planner.inputs.requests.parser import parse_cluster

BRIDGE = get("megatron-bridge")
SETUP = (
    "uv run python scripts/performance/setup_experiment.py --account me --partition batch "
    "-m llama -mr llama3_70b -ng {count} -g h100 -c bf16"
)


def read(text: str, size: int | None = None, given: GivenValues | None = None) -> Reading:
    assert BRIDGE.read is not None
    files = LaunchFiles({"run.sh": text + "\n"}, given)
    assert BRIDGE.recognises(files)
    return BRIDGE.read(files, size)


def setup(words: str = "", count: str = "64") -> Reading:
    return read(f"{SETUP.format(count=count)} {words}")


def test_the_recipe_that_the_options_pick() -> None:
    reading = setup()
    plan, training = reading.plan, reading.training
    assert (reading.model.num_layers, reading.model.vocab_size) == (80, 128_256)
    assert (plan.tp, plan.pp, plan.cp, plan.vpp, plan.dp) == (4, 4, 2, 5, 2)
    assert (plan.zero_stage, plan.sequence_parallel, plan.overlap_tp) == (1, True, True)
    assert (training.global_batch_size, training.seq_length) == (256, 8192)
    assert (training.precision, training.gradient_dtype) == ("bf16", "bf16")
    assert plan.cross_entropy == "in_place"  # Transformer Engine's
    assert (reading.nodes, reading.accelerators_per_node) == (8, 8)
    assert (reading.refusals, reading.unknown) == ((), ())
    assert any("067f987df03b, src/megatron/bridge/perf_recipes/llama/h100" in one
               for one in reading.assumed)  # fmt: skip


def test_the_allocator_of_a_recipe_and_of_the_process() -> None:
    """Recipes set expandable segments where nothing is set; those of FSDP set nothing."""
    assert setup().plan.runtime == "megatron-2026"
    fixed = f"export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512\n{SETUP.format(count=64)}"
    assert read(fixed).plan.runtime == "megatron"
    fsdp = SETUP.format(count=64).replace("h100", "gb200")
    assert read(fsdp).plan.runtime == "megatron"
    spread = f"export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n{fsdp}"
    assert read(spread).plan.runtime == "megatron-2026"


def test_projections_of_compressed_attention_are_left_out() -> None:
    run = "python scripts/training/run_recipe.py --recipe {}_pretrain_{}gpu_{}_fp8mx_config"
    reading = read(run.format("deepseek_v4_pro", 256, "gb300"))
    assert (reading.plan.recompute, reading.refusals) == ("none", ())
    assert any("mla_up_proj in compressed attention" in note for note in reading.assumed)
    latent = read(run.format("deepseek_v3", 256, "gb200"))
    assert latent.plan.recompute_modules == ("mla_up_proj",)


def test_tuning_by_the_task_of_a_performance_script() -> None:
    words = SETUP.format(count=8).replace("llama3_70b", "llama3_8b") + " --task sft"
    reading = read(words)
    assert (reading.plan.tp, reading.plan.dp, reading.training.lora_rank) == (1, 8, 0)
    assert (reading.training.seq_length, reading.training.global_batch_size) == (4096, 32)
    adapted = read(SETUP.format(count=8).replace("-c bf16", "-c fp8_cs") + " --task peft")
    assert (adapted.model.num_layers, adapted.training.lora_rank > 0) == (80, True)


def test_an_override_that_the_files_do_not_say_is_asked_for() -> None:
    run = "torchrun --nproc-per-node 8 run_recipe.py --recipe qwen3_8b_pretrain_config "
    with pytest.raises(Unreadable, match=r"tensor_model_parallel_size=\$TP, .*--set TP="):
        read(f"{run} checkpoint.save=$DIR model.tensor_model_parallel_size=$TP")
    assert read(f"{run} checkpoint.save=$DIR $EXTRA").refusals == ()


def test_tuning_by_a_recipe_and_with_adapters() -> None:
    run = "torchrun --nproc-per-node 8 scripts/training/run_recipe.py --recipe {}_h100_bf16_config"
    whole = read(run.format("qwen3_30b_a3b_sft_8gpu"))
    assert (whole.model.num_layers, whole.training.lora_rank) == (48, 0)
    assert any("fill their sequences" in note for note in whole.assumed)
    adapted = run.format("qwen3_8b_peft_1gpu")
    training = read(adapted).training
    assert (training.lora_rank, training.lora_targets) == (8, ("linear_qkv", "linear_proj"))
    usual = read(run.format("qwen3_14b_peft_1gpu")).training
    assert (usual.lora_rank, len(usual.lora_targets)) == (32, 4)  # those of the class
    asked = read(f"{adapted} peft.dim=4 peft.target_modules=[linear_fc2]").training
    assert (asked.lora_rank, asked.lora_targets) == (4, ("linear_fc2",))
    with pytest.raises(Unreadable, match="adapters at 'router' are not costed"):
        read(f"{adapted} peft.target_modules=[router]")


def test_the_family_and_the_size_of_older_scripts() -> None:
    old = "python scripts/performance/setup_experiment.py -m llama3 -s 70b -ng 64 -g h100 -c bf16"
    assert read(old).plan == setup().plan


def test_precision_and_accelerator_pick_another_recipe() -> None:
    text = SETUP.format(count=64).replace("bf16", "fp8_cs")
    training = read(text).training
    assert (training.precision, training.fp8_recipe) == ("fp8", "tensorwise")
    blackwell = read(SETUP.format(count=64).replace("h100", "gb200"))
    assert (blackwell.nodes, blackwell.accelerators_per_node) == (16, 4)


def test_another_number_of_accelerators_scales_the_batch() -> None:
    reading = setup(count="128")
    assert (reading.plan.dp, reading.training.global_batch_size) == (4, 512)
    assert any("the batch of 256 grows" in one for one in reading.assumed)
    assert setup("-gb 256", count="128").training.global_batch_size == 256


def test_options_and_overrides_win_over_the_recipe() -> None:
    plan = setup("-tp 8 -pp 2 -cp 1 -vp 4 -mb 2").plan
    assert (plan.tp, plan.pp, plan.cp, plan.vpp, plan.micro_batch_size) == (8, 2, 1, 4, 2)
    assert setup("model.tensor_model_parallel_size=2 ++train.micro_batch_size=2").plan.tp == 2
    full = setup("--recompute_num_layers 5").plan
    assert (full.recompute, full.recompute_method, full.recompute_num_layers) == (
        "full",
        "block",
        5,
    )
    some = setup("--recompute_modules core_attn,mlp").plan
    assert (some.recompute, set(some.recompute_modules)) == ("selective", {"core_attn", "mlp"})
    sharded = setup("-pp 1 -vp null --use_megatron_fsdp true").plan
    assert (sharded.zero_stage, sharded.pp) == (3, 1)
    assert setup("--num_layers 40").model.num_layers == 40
    given = GivenValues(values={"train.global_batch_size": "128"})
    assert read(SETUP.format(count=64), given=given).training.global_batch_size == 128


def test_a_recipe_by_the_name_of_its_function() -> None:
    text = "torchrun --nproc_per_node 8 --nnodes 4 scripts/training/run_recipe.py --recipe "
    reading = read(text + "llama3_70b_pretrain_config model.context_parallel_size=1")
    assert (reading.plan.tp, reading.plan.pp, reading.plan.cp, reading.plan.dp) == (4, 4, 1, 2)
    # From its NullTokenizer, since the recipe asks for the tokenizer's size.
    assert (reading.model.vocab_size, reading.training.global_batch_size) == (32_000, 512)
    by_option = SETUP.format(count=32).replace("-g h100", "--use_recipes -g h100")
    assert read(by_option).plan.cp == 2


def test_experts_and_layouts() -> None:
    text = SETUP.format(count=256).replace("llama3_70b", "deepseek_v3").replace("h100", "gb300")
    reading = read(text)
    plan, model = reading.plan, reading.model
    assert model.moe is not None
    assert (plan.ep, plan.etp, model.mtp_num_layers) == (64, 1, 1)
    assert sum(plan.stage_layers) in (0, model.num_layers)
    assert plan.moe_dispatcher == "hybridep"


def test_a_command_inside_a_text_that_another_program_runs() -> None:
    command = SETUP.format(count=64).replace(" -g h100", " \\\n    -g h100")
    text = f"worker=$(cat <<- EOM\n  cd x ;\n  numactl nice {command}\nEOM\n)\ntorchrun x.sh"
    reading = read(text)
    assert (reading.plan.tp, reading.plan.pp) == (4, 4)
    assert any(one.line == 3 for one in reading.settings)


def test_lint_of_a_script_of_which_a_part_is_no_bash() -> None:
    """Its variables are unknown then, and the launch is judged all the same."""
    text = f"worker=$(cat <<- EOM\n  it's here\n  {SETUP.format(count=64)}\nEOM\n)\ntorchrun x.sh\n"
    with pytest.raises(Unreadable, match="has no \\)"):
        evaluate({"run.sh": text}, "run.sh")
    assert lint({"run.sh": text}, parse_cluster("8x8xh100-sxm")).verdict != "refused"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SETUP.format(count=64).replace("llama3_70b", "llama3_71b"), "nearest are llama3_70b_pre"),
        (
            SETUP.format(count=64) + " --num_experts 8",
            "--num_experts is not a known option.*num_moe_experts",
        ),
        (SETUP.format(count=64) + " --hidden_size 4096", "model.hidden_size 4096 makes"),
        (SETUP.format(count=64) + " model.hybrid_layer_pattern=MMM", "makes .* another model"),
        (SETUP.format(count=64) + " model.odd_expert_layers=4", "model.odd_expert_layers 4: not"),
        (SETUP.format(count=64) + " -tp nan", "tensor_model_parallel_size must be a whole number"),
        (SETUP.format(count=64) + " -tp true", "tensor_model_parallel_size must be a whole number"),
        (SETUP.format(count=64) + " -tp [1", "tensor_model_parallel_size must be a whole number"),
        (SETUP.format(count="many"), "--num_gpus 'many' is not a number"),
        (SETUP.format(count=64) + " --task dpo", "--task dpo is not read; pretrain, sft, peft are"),
        (SETUP.format(count=64) + " stray", "'stray' is neither an option nor a setting"),
        (SETUP.format(count="$COUNT"), r"--num_gpus is \$COUNT.*--set COUNT="),
        (
            SETUP.format(count=64) + " mixed_precision=bf16_with_int4",
            "'mixed_precision=bf16_with_int4' is neither an option",
        ),
        ("python run_recipe.py --recipe nemotronh_4b_pretrain_config", "give it \\(--model\\)"),
    ],
)
def test_what_is_not_understood_is_named(text: str, says: str) -> None:
    with pytest.raises(Unreadable, match=f"run.sh:1: .*{says}"):
        read(text, 64)


def test_a_value_beyond_all_bounds_is_an_error_and_no_crash() -> None:
    with pytest.raises(Unreadable):
        setup("-sl 999999999999999999999")
    with pytest.raises(Unreadable, match="less than or equal to 1000000"):
        setup("-tp 999999999")
    assert "world_size" in {one.reason.code for one in setup("-tp 128").refusals}


def test_a_model_that_is_given_is_taken_for_one_that_is_no_preset() -> None:
    model, _ = parse_model("llama-3.1-8b")
    text = "torchrun --nproc_per_node 8 run_recipe.py --recipe nemotronh_4b_pretrain_config"
    assert read(text, given=GivenValues(model=model)).model == model


def test_lint_judges_a_published_recipe_without_an_error() -> None:
    answer = lint({"run.sh": SETUP.format(count=64) + "\n"}, parse_cluster("8x8xh100-sxm"))
    assert answer.framework == "Megatron-Bridge"
    assert [one for one in answer.findings if one.severity == "error"] == []
    larger = lint({"run.sh": SETUP.format(count=64) + " -tp 3\n"}, parse_cluster("8x8xh100-sxm"))
    assert any("divis" in one.text or "multiple" in one.text for one in larger.findings)


OWN = """\
import torch
from megatron.bridge import AutoBridge
from megatron.bridge.training.config import ConfigContainer, OptimizerConfig, TrainingConfig
from megatron.bridge.training.mixed_precision import MixedPrecisionConfig
from megatron.bridge.models.gpt_provider import GPTModelProvider

MODEL = GPTModelProvider(
    num_layers=24, hidden_size=2048, ffn_hidden_size=8192, num_attention_heads=16,
    num_query_groups=4, seq_length=4096, vocab_size=32000, tensor_model_parallel_size=2,
    sequence_parallel=True, gated_linear_unit=True, activation_func=torch.nn.functional.silu,
    normalization="RMSNorm", add_bias_linear=False, position_embedding_type="rope",
)

def config() -> ConfigContainer:
    return ConfigContainer(
        model=MODEL,
        train=TrainingConfig(micro_batch_size=2, global_batch_size=64),
        optimizer=OptimizerConfig(optimizer="adam"),
        mixed_precision=MixedPrecisionConfig(
            bf16=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16
        ),
    )
"""


def test_a_recipe_of_ones_own_is_read() -> None:
    assert BRIDGE.read is not None
    assert BRIDGE.recognises({"own.py": OWN})
    reading = BRIDGE.read({"own.py": OWN}, 16)
    model, plan = reading.model, reading.plan
    assert (model.num_layers, model.num_query_groups, model.gated_mlp) == (24, 4, True)
    assert (plan.tp, plan.dp, plan.micro_batch_size) == (2, 8, 2)
    assert (reading.training.seq_length, reading.training.global_batch_size) == (4096, 64)
    with pytest.raises(Unreadable, match=r"model.experimental_width 8 is not understood"):
        BRIDGE.read({"own.py": OWN.replace("num_layers", "experimental_width=8, num_layers")}, 16)


def test_the_model_of_a_bridge_is_that_of_its_name() -> None:
    assert BRIDGE.read is not None
    i, j = OWN.index("MODEL = "), OWN.index("def config")
    named = 'MODEL = AutoBridge.from_hf_pretrained("Qwen/Qwen3-8B").to_megatron_provider()\n'
    sizes = "MODEL.seq_length = 4096\nMODEL.tensor_model_parallel_size = 4\n\n"
    reading = BRIDGE.read({"own.py": OWN[:i] + named + sizes + OWN[j:]}, 16)
    assert (reading.model.name, reading.plan.tp, reading.plan.dp) == ("qwen3-8b", 4, 4)
    other = named.replace("Qwen/Qwen3-8B", "some/thing")
    with pytest.raises(Unreadable, match="the model some/thing is no preset"):
        BRIDGE.read({"own.py": OWN[:i] + other + sizes + OWN[j:]}, 16)


RECIPE = """\
from megatron.bridge.recipes.llama import llama3_70b_pretrain_config
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import bf16_with_mxfp8_mixed
from megatron.bridge.training.pretrain import pretrain

DEGREE = 4


def smaller(cfg):
    cfg.train.micro_batch_size = 2


def main():
    cfg = llama3_70b_pretrain_config()
    cfg.model.tensor_model_parallel_size = 2 * DEGREE
    cfg.model.context_parallel_size = 1
    cfg.mixed_precision = bf16_with_mxfp8_mixed()
    cfg.train.train_iters = steps
    smaller(cfg)
    pretrain(cfg, forward_step)
"""


def of_python(text: str, **more: str) -> Reading:
    assert BRIDGE.read is not None
    files = {"train.py": text, **more}
    assert BRIDGE.recognises(files)
    return BRIDGE.read(LaunchFiles(files), None if more else 64)


def test_a_python_file_that_sets_some_of_a_public_recipe() -> None:
    reading = of_python(RECIPE)
    plan, training = reading.plan, reading.training
    assert (plan.tp, plan.pp, plan.cp, plan.micro_batch_size) == (8, 4, 1, 2)
    assert (training.precision, training.fp8_recipe) == ("fp8", "mxfp8")
    settings = {one.name: one.line for one in reading.settings}
    assert settings["model.tensor_model_parallel_size"] == 15
    script = "torchrun --nproc_per_node 8 --nnodes 16 train.py\n"
    assert of_python(RECIPE, **{"run.sh": script}).plan.dp == 4


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("2 * DEGREE", "degree", "model.tensor_model_parallel_size is `degree`, which the file"),
        ("smaller(cfg)\n    pre", "wide(cfg)\n    pre", r"train.py:19: `wide\(cfg\)` may change"),
        ("cfg.mixed_precision = ", "cfg.model = ", "train.py:17: the whole model is replaced"),
        (
            "70b_pretrain_config()",
            "70b_pretrain_config(tp=2)",
            r"\(tp=...\): recipes take no",
        ),
        ("context_parallel_size = 1", "hidden_size = 64", "model.hidden_size 64 makes .* another"),
        (
            "context_parallel_size = 1",
            "odd_expert_layers = 4",
            "odd_expert_layers 4: not und",
        ),
        ("llama3_70b_pre", "llama9_70b_pre", r"llama9_70b_pretrain_config of recipes\.\S+ is no"),
    ],
)
def test_what_a_python_file_leaves_open_is_named(before: str, after: str, says: str) -> None:
    with pytest.raises(Unreadable, match=says):
        of_python(RECIPE.replace(before, after))


@pytest.mark.exhaustive
def test_every_recipe_of_a_known_model_is_read_as_its_table_says() -> None:
    table, count, told = recipes.document()["recipes"], 0, set[str]()
    fields = {
        "tp": "model.tensor_model_parallel_size",
        "pp": "model.pipeline_model_parallel_size",
        "cp": "model.context_parallel_size",
        "ep": "model.expert_model_parallel_size",
        "micro_batch_size": "train.micro_batch_size",
    }
    for name, row in table.items():
        found = re.search(r"_(\d+)gpu", name)
        size = int(found[1]) if found else 512
        each = min(size, 8)
        launch = f"torchrun --nproc_per_node {each} --nnodes {size // each} run_recipe.py"
        try:
            reading = read(f"{launch} --recipe {name}")
        except Unreadable as error:
            what = r".*(--model|--seq-length is missing|adapters at 'in_proj').*"
            told.add(re.sub(what, r"\1", str(error)))
            continue
        count += 1
        for field, key in fields.items():
            assert getattr(reading.plan, field) == (row.get(key) or 1), (name, field)
        assert reading.training.global_batch_size == row["train.global_batch_size"], name
        assert reading.training.seq_length == row["model.seq_length"], name
    assert count > 300
    assert told == {"--model", "--seq-length is missing", "adapters at 'in_proj'"}
