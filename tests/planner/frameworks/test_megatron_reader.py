"""Megatron-LM scripts as users write them, read back."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.spec import MLASpec
from planner import frameworks
from planner.frameworks.arguments import known_arguments
from planner.frameworks.megatron import layout, reader
from planner.frameworks.read_results import Reading, Unreadable
from tests.fixtures.frameworks import ALL_CASES, bundle
from tests.fixtures.launches import cluster
from tests.fixtures.tiers import examples

MEGATRON = frameworks.get("megatron")
KNOWN = known_arguments("planner.frameworks.megatron")
BASE = {
    "--num-layers": "8",
    "--hidden-size": "1024",
    "--num-attention-heads": "16",
    "--seq-length": "2048",
    "--max-position-embeddings": "2048",
    "--micro-batch-size": "1",
    "--vocab-size": "32000",
    "--bf16": "",
}


def read(script: str, accelerators: int | None = None, **files: str) -> Reading:
    return reader.read({"train.sh": script, **files}, accelerators)


def script(*words: str, gpus: int = 8, without: tuple[str, ...] = (), **more: str) -> str:
    """A small launch with some options added, replaced or left out."""
    options = {**BASE, **{f"--{name.replace('_', '-')}": value for name, value in more.items()}}
    given = " ".join(f"{name} {value}" for name, value in options.items() if name not in without)
    return (
        "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
        f"torchrun --nproc_per_node {gpus} pretrain_gpt.py {given} {' '.join(words)}\n"
    )


def refusals(reading: Reading) -> str:
    return "\n".join(refusal.reason.text for refusal in reading.refusals)


def test_what_the_environment_must_hold_is_said() -> None:
    words = "--tensor-model-parallel-size 2"
    assert not any("CUDA_DEVICE" in text for text in read(script(words)).assumed)
    without = script(words).replace("export CUDA_DEVICE_MAX_CONNECTIONS=1\n", "")
    assert any("the script does not set it" in text for text in read(without).assumed)
    other = script(words).replace("CONNECTIONS=1", "CONNECTIONS=32")
    assert any("the script sets it to 32" in text for text in read(other).assumed)
    experts = f"{words} --num-experts 4 --expert-model-parallel-size 2"
    overlap = f"{experts} --overlap-moe-expert-parallel-comm"
    assert any(
        "hide the exchange of tokens as 32" in text for text in read(script(overlap)).assumed
    )
    other = script(overlap).replace("CONNECTIONS=1", "CONNECTIONS=32")
    assert not any("CUDA_DEVICE" in text for text in read(other).assumed)


def test_absent_flags_have_the_defaults_of_megatron() -> None:
    reading = read(script())
    model, plan = reading.model, reading.plan
    assert (model.ffn_hidden_size, model.head_dim, model.num_query_groups) == (4096, 64, 16)
    assert (model.position, model.norm, model.tied_embeddings) == ("learned", "layernorm", True)
    assert (model.hidden_dropout, model.attention_dropout) == (0.1, 0.1)
    assert (model.qkv_bias, model.mlp_bias, model.gated_mlp) == (True, True, False)
    assert (plan.dp, plan.zero_stage, plan.recompute, plan.cross_entropy) == (
        8,
        0,
        "none",
        "unfused",
    )
    assert (plan.overlap_grad_reduce, plan.overlap_param_gather) == (False, False)
    assert reading.training.global_batch_size == 8
    assert (reading.training.gradient_dtype, reading.training.optimizer) == ("fp32", "adam")
    gated = read(script("--swiglu")).model
    assert gated.ffn_hidden_size == int(4 * 1024 * 2 / 3 / 64) * 64
    experts = read(script("--num-experts 4 --disable-bias-linear --expert-model-parallel-size 2"))
    moe = experts.model.moe
    assert moe is not None
    assert (moe.top_k, moe.expert_ffn_hidden_size, moe.router_bias) == (2, 4096, False)
    assert experts.plan.moe_dispatcher == "allgather"
    tensor = read(script("--num-experts 4 --tensor-model-parallel-size 2 --sequence-parallel")).plan
    assert (tensor.tp, tensor.etp, tensor.ep) == (2, 2, 1)
    latent = read(script("--multi-latent-attention --position-embedding-type rope")).model
    assert latent.mla == MLASpec(
        kv_lora_rank=32, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    )
    assert read(script("--num-query-groups 4")).model.num_query_groups == 16
    assert read(script("--group-query-attention --num-query-groups 4")).model.num_query_groups == 4


def test_torch_fsdp2_keeps_gradients_as_weights() -> None:
    """Megatron-LM wraps without a MixedPrecisionPolicy, whatever the buffers of its own DDP are."""
    for more in ("", " --accumulate-allreduce-grads-in-fp32"):
        words = f"--use-torch-fsdp2 --no-gradient-accumulation-fusion{more}"
        training = read(script(words)).training
        assert (training.gradient_dtype, training.gradient_reduce_dtype) == ("bf16", "bf16")
        half = read(script(f"{words} --fp16", without=("--bf16",))).training
        assert half.gradient_dtype == "fp16"


def test_torch_fsdp2_overlaps_by_itself() -> None:
    """Megatron-LM refuses --overlap-param-gather beside it."""
    plan = read(script("--use-torch-fsdp2 --no-gradient-accumulation-fusion")).plan
    assert (plan.zero_stage, plan.overlap_grad_reduce, plan.overlap_param_gather) == (3, True, True)


def test_options_that_the_reader_names_are_in_the_stored_list_which_spans_all_versions() -> None:
    first, *_, last = KNOWN["versions"]
    assert (first[:4], last[:4]) == ("0.12", "0.20")
    named = {*reader.GONE, *(name for pair in reader.EXCLUSIVE for name in pair)}
    named |= {name for option, others in reader.NEEDS for name in (option, *others)}
    assert named <= set(KNOWN["flags"])


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2", {"vpp": 2}),
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2", {"vpp": 2}),
        (
            "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 1 "
            "--decoder-last-pipeline-num-layers 1",
            {"first_stage_layers": 1, "last_stage_layers": 1},
        ),
        (
            "--pipeline-model-parallel-size 2 --account-for-embedding-in-pipeline-split "
            "--account-for-loss-in-pipeline-split --num-layers 8",
            {"first_stage_layers": 4, "last_stage_layers": 4},
        ),
        (
            "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et|t*3,|ttt|tL'",
            {"stage_layers": (1, 3, 3, 1), "vpp": 1},
        ),
        (
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'E|(tt|)*2tttt|L'",
            None,
        ),
        (
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et|ttt|ttt|tL'",
            {"stage_layers": (1, 3, 3, 1), "vpp": 2},
        ),
        (
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'E|(tt|)*3tt|L'",
            {"stage_layers": (0, 2, 2, 2, 2, 0), "vpp": 3},
        ),
        ("--use-tp-pp-dp-mapping", {"rank_order": "tp-cp-ep-pp-dp"}),
        ("--tensor-model-parallel-size 1 --sequence-parallel", {"sequence_parallel": False}),
        ("--recompute-activations", {"recompute_modules": ("core_attn",)}),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 3",
            {"recompute": "full", "recompute_method": "block", "recompute_num_layers": 3},
        ),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 0",
            {"recompute": "none"},
        ),
        (
            "--pipeline-model-parallel-size 2 --account-for-embedding-in-pipeline-split "
            "--account-for-loss-in-pipeline-split --num-layers 6 "
            "--num-virtual-stages-per-pipeline-rank 2",
            {"stage_layers": (1, 2, 2, 1), "vpp": 2, "first_stage_layers": 0},
        ),
        ("--attention-backend unfused", {"attention_kernel": "unfused"}),
        (
            "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te",
            {"cross_entropy": "in_place"},
        ),
        (
            "--num-experts 8 --moe-token-dispatcher-type flex --moe-enable-deepep",
            {"moe_dispatcher": "deepep"},
        ),
        (
            "--use-distributed-optimizer --num-distributed-optimizer-instances 2",
            {"zero_stage": 1, "dp_shard": 4},
        ),
        (
            "--use-distributed-optimizer --optimizer-cpu-offload --use-precision-aware-optimizer",
            {"offload_optimizer": True},
        ),
        ("--context-parallel-size 2 --cp-comm-type a2a", {"cp": 2, "cp_kind": "a2a"}),
    ],
)
def test_what_options_mean_for_the_plan(words: str, fields: dict[str, Any] | None) -> None:
    reading = read(script(words))
    if fields is None:
        assert "vpp_layout" in {refusal.reason.code for refusal in reading.refusals}
        return
    assert {name: getattr(reading.plan, name) for name in fields} == fields
    assert reading.refusals == ()


@pytest.mark.parametrize(
    ("pattern", "kinds"),
    [
        ("1", "mmmmmmmm"),
        ("2", "mdmdmdmd"),
        ("'[0]*1+[1]*7'", "dmmmmmmm"),
        ("'[0,1]*4'", "dmdmdmdm"),
        ("'([0]*1+[1]*1)*4'", "dmdmdmdm"),
        ("'[0]*2+[1,0]*3'", "ddmdmdmd"),
    ],
)
def test_which_layers_have_experts(pattern: str, kinds: str) -> None:
    model = read(script(f"--num-experts 4 --moe-layer-freq {pattern}")).model
    assert "".join(kind[0] for kind in model.feed_forwards) == kinds


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--tensor-model-paralel-size 2", "the nearest is --tensor-model-parallel-size"),
        ("--num-experts four", "--num-experts cannot be 'four': it is not an integer"),
        ("--attention-backend fast", "it is one of flash, fused"),
        ("--swiglu=yes", "--swiglu takes no value"),
        ("--swiglu yes", "'yes' belongs to no option"),
        ("--rampup-batch-size 1 2 stray", "--rampup-batch-size cannot be 'stray'"),
        ("--split", "--split takes one value, not 0"),
        ("--fp16", "--bf16 and --fp16 exclude each other"),
        ("--batch-size 4", "--batch-size is no longer valid"),
        ("--checkpoint-activations", "give --recompute-activations"),
        ("--no-position-embedding", "give --position-embedding-type"),
        ("--overlap-param-gather", "--overlap-param-gather needs --overlap-grad-reduce"),
        ("--tp-comm-overlap", "--tp-comm-overlap needs --sequence-parallel"),
        ("--fp8-param-gather", "--fp8-param-gather needs --fp8-format"),
        ("--fp4-param-gather", "--fp4-param-gather needs --fp4-format"),
        ("--recompute-granularity full", "full recompute needs --recompute-method"),
        ("--recompute-granularity selective --recompute-method block", "need full recompute"),
        ("--expert-model-parallel-size 2", "--expert-model-parallel-size needs --num-experts"),
        ("--moe-ffn-hidden-size 512", "--moe-ffn-hidden-size needs --num-experts"),
        ("--ckpt-format fsdp_dtensor", "fsdp_dtensor needs --use-megatron-fsdp"),
        ("--max-position-embeddings 1024", "at least the sequence length 2048"),
        ("--tensor-model-parallel-size 3", "8 accelerators are not a multiple of tp 3"),
        ("--tensor-model-parallel-size 0", "at least 1 is needed"),
        ("--train-iters 5 --train-samples 5", "--train-iters and --train-samples exclude"),
        ("--exp-avg-dtype bf16", "need --use-precision-aware-optimizer"),
        ("--use-megatron-fsdp", "Megatron-FSDP refuses CUDA_DEVICE_MAX_CONNECTIONS=1"),
        ("--use-megatron-fsdp", "--ckpt-format fsdp_dtensor"),
        ("--num-experts 4 --moe-layer-freq '[0]*3+[1]*4'", "each of 8 layers"),
        ("--pipeline-model-parallel-layout 'Et*8X'", "unknown letter 'X'"),
        ("--pipeline-model-parallel-layout 'E(t|)*99999999L'", "longer than any model"),
        ("--use-custom-fsdp --use-megatron-fsdp --window-size 8,0", "no version has all options"),
        ("'two words'", "'two words' belongs to no option"),
    ],
)
def test_what_megatron_would_refuse_is_listed_and_the_rest_is_read(words: str, text: str) -> None:
    reading = read(script(words))
    assert text in refusals(reading), refusals(reading)
    assert reading.model.num_layers == 8
    found = [r for r in reading.refusals if text in r.reason.text]
    assert found[0].setting is None or found[0].setting.line == 2


def test_the_old_switch_of_recompute_is_refused_and_its_meaning_kept() -> None:
    reading = read(script("--checkpoint-activations"))
    plan = reading.plan
    assert (plan.recompute, plan.recompute_method, plan.recompute_num_layers) == (
        "full", "uniform", 1,
    )  # fmt: skip
    assert any("no longer valid" in one.reason.text for one in reading.refusals)


def test_a_missing_micro_batch_is_refused_and_one_taken() -> None:
    reading = read(script(without=("--micro-batch-size",)))
    assert "--micro-batch-size is missing" in refusals(reading)
    assert reading.plan.micro_batch_size == 1


def test_fp32_and_what_has_no_place_in_a_plan_is_said() -> None:
    words = (
        "--optimizer lion --recompute-granularity selective --recompute-modules mlp mhc "
        "--optimizer-cpu-offload --optimizer-offload-fraction 0.5 --position-embedding-type mrope"
    )
    reading = read(script(words, without=("--bf16",)))
    said = "\n".join(reading.assumed)
    for text in (
        "training in fp32",
        "lion is costed as Adam",
        "recompute of mhc",
        "offloading 50%",
    ):
        assert text in said
    assert reading.plan.recompute_modules == ("mlp",)


@pytest.mark.parametrize(
    ("words", "zero", "said"),
    [
        ("--optimizer muon", 0, ""),
        ("--optimizer muon --use-distributed-optimizer", 1, ""),
        ("--optimizer dist_muon --overlap-grad-reduce --overlap-param-gather", 1, ""),
        ("--optimizer muon --muon-tp-mode blockwise", 0, "blockwise is costed as duplicated"),
        ("--optimizer muon --muon-num-ns-steps 7", 0, "7 steps of Newton-Schulz are costed as 5"),
        ("--optimizer muon --muon-scalar-optimizer lion", 0, "are costed with Adam"),
    ],
)
def test_muon_is_read_with_how_it_is_distributed(words: str, zero: int, said: str) -> None:
    reading = read(script(f"{words} --muon-momentum 0.95"))
    assert (reading.training.optimizer, reading.plan.zero_stage) == ("muon", zero)
    assert reading.refusals == ()
    assert "--muon-momentum" not in {setting.name for setting in reading.unread}
    assert said in "\n".join(reading.assumed)


def test_a_program_with_options_of_its_own_is_not_blamed_for_them() -> None:
    text = script("--my-own 1").replace("pretrain_gpt.py", "train_mine.py")
    reading = read(text)
    assert [setting.name for setting in reading.unknown] == ["--my-own"]
    assert reading.refusals == ()
    assert "options of train_mine.py, unknown upstream: --my-own" in reading.assumed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo hello", "no script calls a training program"),
        (script(without=("--num-layers",)), "--num-layers is missing"),
        (script(without=("--num-layers",), num_layers="$LAYERS"), "--num-layers"),
        (script(hidden_size="$(nproc)"), "which the files do not say"),
        (script().replace("--nproc_per_node 8", "--nproc_per_node $GPUS"), "give a cluster"),
        (script().replace("torchrun --nproc_per_node 8", "srun python"), "give a cluster"),
        (script().replace("pretrain_gpt", "pretrain_bert"), "(BERT): only training of decoders"),
        (script("--hybrid-layer-pattern M*XM"), "the letters are M G * - E D +"),
        (script("--is-hybrid-model"), "needs --hybrid-layer-pattern"),
        (script(num_layers="99999999"), "num_layers"),
    ],
)
def test_what_cannot_be_read_says_what_is_needed_and_where(text: str, message: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read(text)
    assert message in str(caught.value)


def test_the_accelerators_asked_for_count_only_where_the_script_leaves_them_open() -> None:
    open_ = script().replace("--nproc_per_node 8", "--nproc_per_node $GPUS --nnodes $NODES")
    reading = read(open_, 32)
    assert (reading.plan.dp, reading.nodes, reading.accelerators_per_node) == (32, None, None)
    assert read(script(), 32).plan.dp == 8
    slurm = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n"
    tasks = read(slurm + script().replace("torchrun --nproc_per_node 8", "srun python"))
    assert (tasks.plan.dp, tasks.nodes, tasks.accelerators_per_node) == (16, 2, 8)


@pytest.mark.parametrize(
    ("call", "size"),
    [
        ("python pretrain_gpt.py", 1),
        ("srun python pretrain_gpt.py", 64),  # of the cluster
        ("python pretrain_gpt.py --tensor-model-parallel-size 2", 64),  # in a wrapper of a launcher
    ],
)
def test_python_alone_starts_one_process(call: str, size: int) -> None:
    words = script("--micro-batch-size 4 --global-batch-size 512").partition("pretrain_gpt.py")[2]
    assert read(f"{call} {words}", 64).plan.accelerators == size


def test_layout_strings_are_written_out_as_megatron_does() -> None:
    assert layout.parsed("Ettt|(tt|)*3,m|L") == ["Ettt", "tt", "tt", "tt", "m", "L"]
    assert layout.parsed("Et*2|t*3L") == ["Ett", "tttL"]
    for text in ("(" * 50_000, "t*99999999", "((t*9)*9)*9999999", "x"):
        with pytest.raises(ValueError, match=r"longer|unknown letter"):
            layout.parsed(text)


SCRIPTS = [bundle(name, case).files["launch.sh"] for name, case in ALL_CASES if name == "megatron"]
VALUES = st.sampled_from(
    ["", "-1", "0", "3", "99999999999999999999", "nan", "1e400", "x", "$(x)", "'[0]*9'", "a b"]
)


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_any_options_are_read_or_refused(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(KNOWN["flags"])), max_size=6))
    words = " ".join(f"{name} {data.draw(VALUES)}" for name in names)
    text = data.draw(st.sampled_from(SCRIPTS)).replace('  "$@"', f"  {words}")
    with suppress(Unreadable):
        reading = reader.read({"launch.sh": text}, 16)
        MEGATRON.reasons(reading.request(cluster(2, 8)), reading.plan)
