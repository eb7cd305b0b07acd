"""Megatron-LM scripts as users write them, read back."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.spec import MLASpec
from planner import frameworks
from planner.documents.request import PlanRequest
from planner.frameworks.arguments import known_arguments
from planner.frameworks.megatron import layout, reader
from planner.frameworks.reading import Reading, Unreadable
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


GPT3 = """\
#!/bin/bash

# Runs the "175B" parameter model

export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
NUM_NODES=16
MASTER_ADDR=localhost
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))

CHECKPOINT_PATH=$1 #<Specify path>
DATA_PATH=$2 #<Specify path and file prefix>_text_document

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
)
GPT_MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --attention-backend auto # Can use (flash/fused/unfused/local)
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 1536
    --rampup-batch-size 16 16 5859375
    --train-iters 500000
    --weight-decay 0.1
    --fp16
    --lr 6.0e-5
    --lr-warmup-fraction .001
)
MODEL_PARALLEL_ARGS=(
\t--tensor-model-parallel-size 8
\t--pipeline-model-parallel-size 16
)
DATA_ARGS=(
    --data-path $DATA_PATH
    --vocab-file vocab.json
    --merge-file merges.txt
)
LOGGING_ARGS=(--save $CHECKPOINT_PATH --save-interval 10000 --eval-iters 10)

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    ${GPT_MODEL_ARGS[@]} \\
    ${TRAINING_ARGS[@]} \\
    ${MODEL_PARALLEL_ARGS[@]} \\
    ${DATA_ARGS[@]} \\
    ${LOGGING_ARGS[@]}
"""


def test_gpt3_175b_with_arrays() -> None:
    reading = read(GPT3)
    assert (reading.nodes, reading.accelerators_per_node) == (16, 8)
    assert reading.model.model_dump(exclude_defaults=True) == {
        "num_layers": 96,
        "hidden_size": 12288,
        "num_attention_heads": 96,
        "num_query_groups": 96,
        "head_dim": 128,
        "ffn_hidden_size": 49152,
        "vocab_size": 50257,
        "tied_embeddings": True,
        "qkv_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
        "norm_bias": True,
        "position": "learned",
        "max_position_embeddings": 2048,
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
    }
    assert reading.training.model_dump(exclude_defaults=True) == {
        "seq_length": 2048,
        "global_batch_size": 1536,
        "precision": "fp16",
        "gradient_dtype": "fp16",
        "gradient_reduce_dtype": "fp16",
        "tokens": 500000 * 1536 * 2048,
    }
    assert reading.plan.model_dump(exclude_defaults=True) == {
        "tp": 8,
        "pp": 16,
        "zero_stage": 0,
        "cross_entropy": "unfused",
        "overlap_grad_reduce": False,
        "overlap_param_gather": False,
    }
    assert reading.unknown == reading.refusals == ()
    assert {s.name for s in reading.unread} >= {"--weight-decay", "--data-path", "--save"}
    tensor = reading.find("--tensor-model-parallel-size")
    assert tensor is not None
    assert (tensor.value, tensor.line) == ("8", 39)
    assert "GPT2BPETokenizer has 50257 tokens" in reading.assumed
    nodes = reading.find("--nnodes")
    assert nodes is not None
    assert (nodes.value, nodes.line) == ("16", 17)


LLAMA = """\
#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=1
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
SIZE=${1:-70b}
TP_SIZE=${TP_SIZE:-4}
PP_SIZE=${PP_SIZE:-4}
DTYPE="fp8"
if [[ $SIZE == 70b ]]; then
    LAYERS=80; HIDDEN=8192; FFN=28672; HEADS=64
else
    LAYERS=32; HIDDEN=4096; FFN=14336; HEADS=32
fi
MODEL_ARGS=(
    --use-mcore-models
    --num-layers $LAYERS --hidden-size $HIDDEN --ffn-hidden-size $FFN
    --num-attention-heads $HEADS --group-query-attention --num-query-groups 8 --kv-channels 128
    --seq-length 8192 --max-position-embeddings 8192
    --position-embedding-type rope --rotary-base 1000000
    --attention-dropout 0.0 --hidden-dropout 0.0
    --swiglu --normalization RMSNorm --untie-embeddings-and-output-weights --disable-bias-linear
)
TRAINING_ARGS=(
    --micro-batch-size 1 --global-batch-size 128 --train-samples 1000
    --bf16 --grad-reduce-in-bf16 --cross-entropy-loss-fusion --lr 0.00015
)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=(
        "--fp8-format hybrid"
        "--fp8-param-gather"
    )
fi
PARALLEL=(
    --tensor-model-parallel-size $TP_SIZE --pipeline-model-parallel-size $PP_SIZE
    --num-layers-per-virtual-pipeline-stage 5
    --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
    --tp-comm-overlap --recompute-activations
)
if [ -n "${WANDB_API_KEY}" ]; then
    TRAINING_ARGS+=(--wandb-project llama)
fi
srun --mpi=pmix bash -c "
  torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES --rdzv_backend c10d \\
    pretrain_gpt.py ${MODEL_ARGS[*]} ${TRAINING_ARGS[*]} ${DTYPE_ARGS[*]} ${PARALLEL[*]} \\
    --data-path $DATA --tokenizer-type HuggingFaceTokenizer \\
    --tokenizer-model meta-llama/Meta-Llama-3-8B
"
"""


def test_llama_with_slurm_and_arrays_in_a_nested_shell() -> None:
    reading = read(LLAMA)
    assert (reading.nodes, reading.accelerators_per_node) == (4, 8)
    model = reading.model
    assert (model.num_layers, model.hidden_size, model.num_query_groups) == (80, 8192, 8)
    assert (model.gated_mlp, model.norm, model.position) == (True, "rmsnorm", "rope")
    assert (model.vocab_size, model.qkv_bias, model.tied_embeddings) == (128256, False, False)
    assert reading.training.model_dump(exclude_defaults=True) == {
        "seq_length": 8192,
        "global_batch_size": 128,
        "precision": "fp8",
        "fp8_recipe": "delayed",
        "fp8_param_gather": True,
        "gradient_dtype": "bf16",
        "gradient_reduce_dtype": "bf16",
        "tokens": 1000 * 8192,
    }
    assert reading.plan.model_dump(exclude_defaults=True) == {
        "tp": 4,
        "pp": 4,
        "dp": 2,
        "vpp": 4,
        "schedule": "interleaved-1f1b",
        "sequence_parallel": True,
        "recompute": "selective",
        "recompute_modules": ("core_attn",),
        "overlap_tp": True,
    }
    assert reading.refusals == reading.unknown == ()
    assert any("TP_SIZE, PP_SIZE" in text for text in reading.assumed)


MIXTRAL = """\
export CUDA_DEVICE_MAX_CONNECTIONS=1
NNODES=${SLURM_NNODES:-"1"}
MOE_ARGS=(--num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --moe-aux-loss-coeff 1e-2
  --moe-token-dispatcher-type alltoall --overlap-param-gather --overlap-grad-reduce)
torchrun --nproc_per_node 8 --nnodes $NNODES pretrain_gpt.py --use-mcore-models \\
  --disable-bias-linear --seq-length 4096 --max-position-embeddings 32768 --num-layers 32 \\
  --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --attention-dropout 0.0 \\
  --hidden-dropout 0.0 --normalization RMSNorm --position-embedding-type rope --swiglu \\
  --untie-embeddings-and-output-weights --group-query-attention --num-query-groups 8 \\
  --no-position-embedding --rotary-base 1000000 ${MOE_ARGS[@]} \\
  --tokenizer-type Llama2Tokenizer --tokenizer-model $1 --micro-batch-size 1 \\
  --global-batch-size 256 --bf16 --tensor-model-parallel-size 1 \\
  --pipeline-model-parallel-size 4 --expert-model-parallel-size 2 --use-distributed-optimizer \\
  --sequence-parallel
"""


def test_mixtral() -> None:
    reading = read(MIXTRAL)
    moe = reading.model.moe
    assert moe is not None
    assert moe.model_dump(exclude_defaults=True) == {
        "num_experts": 8,
        "top_k": 2,
        "expert_ffn_hidden_size": 14336,
    }
    assert (reading.model.vocab_size, reading.model.max_position_embeddings) == (32000, 32768)
    assert reading.plan.model_dump(exclude_defaults=True) == {
        "pp": 4,
        "dp": 2,
        "ep": 2,
        "cross_entropy": "unfused",
    }
    assert reading.refusals == ()
    request = reading.request(cluster(1, 8))
    assert isinstance(request, PlanRequest)
    assert MEGATRON.reasons(request, reading.plan) == ()


OLD = """\
DISTRIBUTED_ARGS="--nproc_per_node 8 --nnodes 2 --node_rank 0"
GPT_ARGS="--num-layers 24 --hidden-size 1024 --num-attention-heads 16 \\
    --seq-length 1024 \\
    --max-position-embeddings 1024 --swiglu \\
    --use-rotary-position-embeddings --use-flash-attn
    --micro-batch-size 4
    --bf16 --use-custom-fsdp --data-parallel-sharding-strategy optim_grads
"
GPT_ARGS="$GPT_ARGS --tensor-model-parallel-size 2 --DDP-impl local"
python -m torch.distributed.launch $DISTRIBUTED_ARGS \\
    pretrain_gpt.py $GPT_ARGS --vocab-size=50304
"""


def test_the_spellings_of_core_0_12_in_strings() -> None:
    reading = read(OLD)
    assert (reading.nodes, reading.accelerators_per_node) == (2, 8)
    assert (reading.model.position, reading.model.gated_mlp) == ("rope", True)
    assert (reading.model.ffn_hidden_size, reading.model.vocab_size) == (2688, 50304)
    assert (reading.plan.tp, reading.plan.dp, reading.plan.zero_stage) == (2, 8, 2)
    assert (reading.training.global_batch_size, reading.training.gradient_dtype) == (32, "fp32")
    assert [setting.name for setting in reading.unknown] == ["--DDP-impl"]
    assert reading.unknown[0].line == 9


def test_what_the_environment_must_hold_is_said() -> None:
    words = "--tensor-model-parallel-size 2"
    assert not any("CUDA_DEVICE" in text for text in read(script(words)).assumed)
    without = script(words).replace("export CUDA_DEVICE_MAX_CONNECTIONS=1\n", "")
    assert any("the script does not set it" in text for text in read(without).assumed)
    other = script(words).replace("CONNECTIONS=1", "CONNECTIONS=32")
    assert any("the script sets it to 32" in text for text in read(other).assumed)


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
        ("--num-experts four", "--num-experts cannot be 'four': it is no integer"),
        ("--attention-backend fast", "it is one of flash, fused"),
        ("--swiglu=yes", "--swiglu takes no value"),
        ("--swiglu yes", "'yes' belongs to no option"),
        ("--rampup-batch-size 1 2 stray", "--rampup-batch-size cannot be 'stray'"),
        ("--split", "--split takes one value, not 0"),
        ("--fp16", "--bf16 and --fp16 exclude each other"),
        ("--batch-size 4", "--batch-size is no longer valid"),
        ("--checkpoint-activations", "--recompute-activations is"),
        ("--no-position-embedding", "--position-embedding-type is"),
        ("--overlap-param-gather", "--overlap-param-gather needs --overlap-grad-reduce"),
        ("--tp-comm-overlap", "--tp-comm-overlap needs --sequence-parallel"),
        ("--recompute-granularity full", "full recompute needs --recompute-method"),
        ("--recompute-granularity selective --recompute-method block", "full recompute only"),
        ("--expert-model-parallel-size 2", "--expert-model-parallel-size needs --num-experts"),
        ("--moe-ffn-hidden-size 512", "--moe-ffn-hidden-size needs --num-experts"),
        ("--ckpt-format fsdp_dtensor", "fsdp_dtensor needs --use-megatron-fsdp"),
        ("--max-position-embeddings 1024", "at least the sequence length 2048"),
        ("--tensor-model-parallel-size 3", "8 accelerators are not a multiple of tp 3"),
        ("--tensor-model-parallel-size 0", "at least 1 is needed"),
        ("--train-iters 5 --train-samples 5", "--train-iters and --train-samples exclude"),
        ("--exp-avg-dtype bf16", "need --use-precision-aware-optimizer"),
        ("--use-megatron-fsdp", "its FSDP refuses CUDA_DEVICE_MAX_CONNECTIONS=1"),
        ("--use-megatron-fsdp", "--ckpt-format fsdp_dtensor"),
        ("--num-experts 4 --moe-layer-freq '[0]*3+[1]*4'", "each of 8 layers"),
        ("--pipeline-model-parallel-layout 'Et*8X'", "'X' stands for no layer"),
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
    for text in ("trains in fp32", "lion costs as Adam", "recompute of mhc", "offloading 50%"):
        assert text in said
    assert reading.plan.recompute_modules == ("mlp",)


@pytest.mark.parametrize(
    ("words", "zero", "said"),
    [
        ("--optimizer muon", 0, ""),
        ("--optimizer muon --use-distributed-optimizer", 1, ""),
        ("--optimizer dist_muon --overlap-grad-reduce --overlap-param-gather", 1, ""),
        ("--optimizer muon --muon-tp-mode blockwise", 0, "blockwise costs as duplicated"),
        ("--optimizer muon --muon-num-ns-steps 7", 0, "7 steps of Newton-Schulz cost as 5"),
        ("--optimizer muon --muon-scalar-optimizer lion", 0, "cost as with Adam"),
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
    assert "unknown upstream, of train_mine.py: --my-own" in reading.assumed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo hello", "no script calls a training program"),
        (script(without=("--num-layers",)), "--num-layers is missing"),
        (script(without=("--num-layers",), num_layers="$LAYERS"), "--num-layers"),
        (script(hidden_size="$(nproc)"), "which the files do not say"),
        (script().replace("--nproc_per_node 8", "--nproc_per_node $GPUS"), "give a cluster"),
        (script().replace("torchrun --nproc_per_node 8", "srun python"), "give a cluster"),
        (script().replace("pretrain_gpt", "pretrain_bert"), "(BERT): only the training"),
        (script("--hybrid-layer-pattern M*XM"), "letters of layers are M G * - E D +"),
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
    ("files", "own"),
    [
        ({"train.sh": GPT3}, True),
        ({"train.sh": LLAMA}, True),
        ({"a.txt": "hello", "b.sh": OLD}, True),
        ({"train.sh": script("--deepspeed --deepspeed_config x.json")}, False),
        ({"train.sh": script().replace("torchrun", "deepspeed")}, False),
        ({"train.sh": "# MindSpeed-LLM\nimport mindspeed\n" + script()}, False),
        ({"train.sh": script("--use-ascend-mc2")}, False),
        ({"train.sh": "echo hello"}, False),
        ({"train.sh": "'"}, False),
        ({}, False),
    ],
)
def test_recognises_its_own(files: dict[str, str], own: bool) -> None:
    assert reader.recognises(files) is own


def test_layout_strings_are_written_out_as_megatron_does() -> None:
    assert layout.parsed("Ettt|(tt|)*3,m|L") == ["Ettt", "tt", "tt", "tt", "m", "L"]
    assert layout.parsed("Et*2|t*3L") == ["Ett", "tttL"]
    for text in ("(" * 50_000, "t*99999999", "((t*9)*9)*9999999", "x"):
        with pytest.raises(ValueError, match=r"longer|stands for"):
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
