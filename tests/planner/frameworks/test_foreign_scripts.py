"""Launches as people have them: foreign options, placeholders, forks, and what is left out."""

from __future__ import annotations

import json
import re
from importlib.resources import files as resources

import pytest

from planner.answers.lint.request import parse_given
from planner.documents.problems import RequestError
from planner.frameworks import architecture, get, tokenizers
from planner.frameworks.arguments import known_arguments
from planner.frameworks.launch_files import GivenValues, LaunchFiles
from planner.frameworks.megatron import reader as megatron
from planner.frameworks.mindspeed import llm
from planner.frameworks.read_results import Reading, Setting, Unreadable
from planner.frameworks.sources import framework_of, launch_files

SHAPE = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 "
    "--max-position-embeddings 2048 --position-embedding-type rope"
)
USUAL = f"{SHAPE} --micro-batch-size 1 --vocab-size 32000 --bf16"


def files_of(
    words: str, usual: str = USUAL, before: str = "", program: str = "pretrain_gpt.py"
) -> dict[str, str]:
    launch = f"torchrun --nproc_per_node 8 {program} {usual} {words}\n"
    return {"run.sh": f"export CUDA_DEVICE_MAX_CONNECTIONS=1\n{before}\n{launch}"}


def read(
    words: str, usual: str = USUAL, before: str = "", given: GivenValues | None = None
) -> Reading:
    return megatron.read(LaunchFiles(files_of(words, usual, before), given), None)


# What is missing.


def test_what_may_hold_what_is_missing_is_named() -> None:
    shaped = SHAPE.replace("--num-layers 8 ", "")
    usual = f"{shaped} --micro-batch-size 1 --vocab-size 32000 --bf16 ${{MODEL_ARGS[@]}}"
    with pytest.raises(
        Unreadable, match=r"--num-layers is missing \(.*m\.sh is not among the given files"
    ):
        read("", usual, before="source models/m.sh")
    sized = 'SIZE=$1\nif [ "$SIZE" = 7B ]; then LAYERS=32; fi'
    with pytest.raises(Unreadable, match=r"--set LAYERS=.*arguments: give them after --"):
        read("--num-layers $LAYERS", usual, before=sized)
    given = GivenValues(arguments=("7B",))
    assert read("--num-layers $LAYERS", usual, before=sized, given=given).model.num_layers == 32


def test_processes_of_mindspores_launcher() -> None:
    words = f"{USUAL} --tensor-model-parallel-size 2 --ai-framework mindspore"
    job = "msrun --worker_num 16 --local_worker_num 8 --master_addr a pretrain_gpt.py"
    files = LaunchFiles({"run.sh": f"{job} {words}\n"})
    framework = framework_of(files, None)
    assert (framework.name, framework.read is not None) == ("mindspeed", True)
    reading = framework.read(files, None) if framework.read else None
    assert reading is not None
    assert (reading.nodes, reading.accelerators_per_node, reading.plan.dp) == (2, 8, 8)


# Options that may change what is trained.


@pytest.mark.parametrize(
    "words",
    [
        "--noop-layers 61,62",
        "--first-k-dense-replace 3",
        "--lora-rank 16",
        "--freeze-LM",
        "--vision-model-type internvit",
        "--model-provider mimo",
        "--mamba-layers 4",
        "--some-attention-kind linear",
        "--heterogeneous-layers-config-path x.json",
        "--enable-mhc-connections",
    ],
)
def test_what_may_change_the_model_and_is_not_understood_is_refused_by_name(words: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read(words)
    assert words.split()[0] in caught.value.text
    assert "--model" in caught.value.text
    assert caught.value.line == 3


@pytest.mark.parametrize(
    "words",
    [
        "--structured-logs",
        "--train-weighted-split-paths-path x",
        "--moe-loss-coeff-of-mine 0.1",
        "--attention-dropout-seed 3",
        "--vision-model-type none",
        "--rotary-interleaved-patch",
    ],
)
def test_other_unknown_options_are_said_to_be_a_forks(words: str) -> None:
    reading = read(words)
    assert reading.refusals == ()
    (name,) = {one.name for one in reading.unknown}
    assert f"options of a fork of Megatron-LM, unknown upstream: {name}" in reading.assumed


def test_a_sentence_piece_model_has_no_vocabulary_file() -> None:
    words = (
        "--tokenizer-type Llama2Tokenizer --tokenizer-model tokenizer.model "
        "--vocab-file gpt2-vocab.json"
    )
    assert read(words, f"{SHAPE} --micro-batch-size 1 --bf16").model.vocab_size == 32_000


def test_a_named_model_takes_the_place_of_the_options() -> None:
    given = parse_given({"model": "llama-3.1-8b"})
    reading = read("--vision-model-type internvit", given=given)
    assert reading.model.num_layers == 32
    with pytest.raises(Unreadable, match="--lora-rank"):
        read("--lora-rank 16", given=given)


# Options of the parsers that look like the model's and are not: of other programs (retrievers,
# vision, distillation), of kernels, of routing that moves no weights, of scales.
LOOKED_AT = frozenset(
    re.findall(
        r"\S+",
        """
        --add-dense-bias --add-output-layer-bias --apply-query-key-layer-scaling
        --apply-residual-connection-post-layernorm --attn-logit-softcapping
        --balanced-moe-experts --balanced-moe-hot-expert-num --bert-no-binary-head
        --biencoder-projection-dim --biencoder-shared-query-context-model
        --cache-mla-latents --compress-dense --context-parallel-kv-cache-policy
        --cp-window-size --create-moe-param-group --dim-model-base --dino-freeze-last-layer
        --dino-head-hidden-size --dino-norm-last-layer --dino-teacher-temp
        --dino-warmup-teacher-temp --dino-warmup-teacher-temp-epochs
        --disable-dsa-indexer-scoring-relu --disable-moe-token-dropping --enable-mla-absorb
        --enable-mla-scale-kv-lora --enable-mla-scale-q-lora --fix-router
        --hidden-size-teacher --ict-head-size --img-h --img-w
        --index-share-for-mtp-iteration --index-topk-pattern --indexer-batch-size
        --indexer-qk-quant-scheme --kv-head-repeat-before-uly-alltoall
        --lora-register-forward-hook --lu-lora-final-layer-index --mamba-chunk-size
        --mamba-d-conv --mamba-d-ssm --mamba-expand --mhc-num-residual-streams
        --mhc-sinkhorn-iterations --mla-fa-divide-qk --mlp-chunks-for-prefill
        --mlp-chunks-for-training --moe-alltoall-mc2 --moe-apply-probs-on-input
        --moe-enable-routing-replay --moe-expert-rank-capacity-factor --moe-extended-tp
        --moe-min-capacity --moe-mlp-glu-interleave-size --moe-ncclep-static-shape
        --moe-ncclep-zero-copy --moe-revert-type-after-topk
        --moe-shared-expert-glu-interleave-size --moe-single-grouped-bias
        --moe-token-drop-policy --moe-tp-extend-ep --moe-train-capacity-factor
        --moe-use-grouped-tensor --moe-use-legacy-grouped-gemm --mtp-detach-heads --mtp-hsm
        --mtp-spec --mtp-standalone --multiple-validation-sets --no-dsa-indexer-scoring-relu
        --no-enable-linear-qkv --no-persist-layer-norm --no-post-layer-norm
        --no-use-layer-wise-param-layout --no-use-sparse-c8-indexer --norm-topk-prob
        --num-attention-heads-teacher --num-channels --num-experts-switch
        --num-experts-teacher --num-layers-teacher --output-layer-slice-num
        --output-multiplier-scale --patch-dim --query-in-block-prob --query-pre-attn-scalar
        --relative-attention-max-distance --relative-attention-num-buckets
        --retro-attention-gate --retro-cyclic-train-iters --retro-encoder-layers
        --retro-no-verify-neighbor-count --retro-num-neighbors --retro-num-retrieved-chunks
        --retro-workdir --scale-depth --shared-expert-gate-output-dimension --sliding-window
        --sparse-mode --swiglu-limit --trans-hot-expert-group-num --use-dsa-absorb
        --use-grouped-gemm-for-dense-mlp --use-grouped-gemm-for-shared-expert
        --use-kitchen-attention --use-kv-cache --use-triton-gdn --use-triton-mhc
        --use-triton-swiglu-limit --use-ulysses-allgather-kv --vision-backbone-type
        --vision-pretraining --vision-pretraining-type
        """,
    )
)


@pytest.mark.parametrize("framework", ["megatron", "mindspeed", "deepspeed"])
def test_every_known_option_of_the_model_is_asked_for_or_judged(framework: str) -> None:
    """Options of newer parsers that look like the model's are to be looked at by somebody."""
    package = f"planner.frameworks.{framework}"
    rooms = {package, "planner.frameworks.megatron", "planner.frameworks"}
    said = {
        name
        for room in rooms
        for file in resources(room).iterdir()
        if file.name.endswith(".py") or file.name in ("names.json", "forks.json")
        for name in re.findall(r"--[a-z0-9][\w-]*", file.read_text())
    }
    known = known_arguments(package)["flags"] | (llm.flags() if framework == "mindspeed" else {})
    looked = [name for name in known if architecture.builds(name)]
    left = {name for name in looked if name not in said} - architecture.OWN.keys()
    assert left <= LOOKED_AT
    assert len(looked) > 20


# The vocabulary.


@pytest.mark.parametrize(
    ("words", "size"),
    [
        ("--padded-vocab-size 151936", 151_936),
        ("--tokenizer-model meta-llama/Llama-3.1-8B", 128_256),
        ("--tokenizer-model /data/llama2/tokenizer.model", 32_000),
        ("--tokenizer-model Qwen/Qwen2.5-14B", 152_064),
        ("--tokenizer-model /ckpt/Qwen2.5-1.5B-Instruct", 151_936),
        ("--tokenizer-model deepseek-ai/DeepSeek-V3", 129_280),
        ("--vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt", 50_257),
        ("--tokenizer-type Llama2Tokenizer", 32_000),
    ],
)
def test_the_vocabulary_is_what_the_tokenizer_has(words: str, size: int) -> None:
    usual = USUAL.replace("--vocab-size 32000 ", "")
    assert read(words, usual).model.vocab_size == size


def test_an_open_vocabulary_is_said_with_its_weight() -> None:
    reading = read("--tokenizer-model your/tokenizer", USUAL.replace("--vocab-size 32000 ", ""))
    (text,) = [text for text in reading.assumed if "vocabulary" in text]
    assert "10.2 million weights" in text
    assert "--set --vocab-size=N" in text


def test_tokenizers_that_nobody_knows_have_no_size() -> None:
    assert tokenizers.tokenizer_tokens("") is None
    assert tokenizers.tokenizer_tokens("/a/b/c.model") is None


# What is left out, and given.


def test_a_value_that_the_files_leave_out_is_open_and_can_be_given() -> None:
    words = "--tensor-model-parallel-size ${TP} --train-iters ${ITERS}"
    reading = read(words)
    assert reading.plan.tp == 1
    assert reading.open == (
        "--tensor-model-parallel-size is ${TP}, which the files do not say: --set TP=...",
    )
    given = read(words, given=GivenValues({"TP": "4"}))
    assert (given.plan.tp, given.open) == (4, ())


def test_what_a_model_needs_is_no_value_to_leave_open() -> None:
    with pytest.raises(Unreadable, match=r"--set LAYERS=\.\.\."):
        read("", USUAL.replace("--num-layers 8", "--num-layers $LAYERS"))


def test_options_can_be_given_and_are_the_last() -> None:
    assert read("", given=GivenValues({"--vocab-size": "50000"})).model.vocab_size == 50_000


def test_arguments_of_the_script_are_its_parameters() -> None:
    words, before = "--tensor-model-parallel-size ${2} --num-experts ${10}", "MODEL=$1"
    given = GivenValues({"10": "4"}, ("7B", "2"))
    reading = read(words, before=before, given=given)
    assert reading.plan.tp == 2
    assert reading.model.moe is not None
    assert reading.model.moe.num_experts == 4
    shifted = read("--tensor-model-parallel-size $1", before="shift", given=given)
    assert shifted.plan.tp == 2


def test_a_variable_that_no_file_has_is_refused_with_the_nearest() -> None:
    files = files_of("--tensor-model-parallel-size ${TP_SIZE}")
    with pytest.raises(RequestError, match="did you mean TP_SIZE"):
        launch_files(files, GivenValues({"TP_SIZES": "4"}))


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ({"set": ["a"]}, "/set"),
        ({"set": {"A": None}}, "/set/A"),
        ({"set": {"A": True}}, "/set/A"),
        ({"set": {"": "1"}}, "/set"),
        ({"arguments": "7B"}, "/arguments"),
        ({"arguments": ["a\0"]}, "/arguments"),
        ({"model": "llama-9"}, "/model"),
    ],
)
def test_bad_givens_are_told(document: dict[str, object], pointer: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_given(document)
    assert caught.value.problems[0].pointer == pointer


# Bash as people write it.


@pytest.mark.parametrize(
    "words",
    [
        "--data-path <DATA PATH> --tensor-model-parallel-size 2",
        "--data-path=<DATA_PATH> --tensor-model-parallel-size 2",
        "--data-path <path>/text --tensor-model-parallel-size 2",
        "--data-path your data path --tensor-model-parallel-size 2",
    ],
)
def test_a_placeholder_swallows_nothing(words: str) -> None:
    reading = read(words)
    assert reading.plan.tp == 2
    assert reading.refusals == ()


def test_redirections_stay_redirections() -> None:
    assert read("--tensor-model-parallel-size 2 <in.txt >out.txt 2>&1").plan.tp == 2


def test_sbatch_on_the_command_line_goes_before_the_lines_of_the_script() -> None:
    job = (
        "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n"
        f"export CUDA_DEVICE_MAX_CONNECTIONS=1\nsrun python pretrain_gpt.py {USUAL}\n"
    )
    files = {"submit.sh": "sbatch --nodes 4 train.slurm\n", "train.slurm": job}
    assert megatron.read(files, None).nodes == 4
    assert megatron.read({"train.slurm": job}, None).nodes == 2


def test_the_length_of_the_training_is_not_asked_for() -> None:
    reading = read("--train-iters $(cat iters)")
    assert reading.open == ()
    assert reading.training.tokens is None


# Whose launch it is.


@pytest.mark.parametrize(
    ("words", "before", "framework"),
    [
        ("--tokenizer-name-or-path x", "", "megatron"),
        ("--deepspeed --deepspeed_config ds.json", "# runs on mindspeed too", "deepspeed"),
        ("--noop-layers 1 --use-fused-rmsnorm", "", "mindspeed"),
    ],
)
def test_what_is_launched_decides_the_framework(words: str, before: str, framework: str) -> None:
    assert framework_of(files_of(words, before=before), None) is get(framework)


# Forks.


def test_one_key_for_all_heads_and_widths_in_multiples() -> None:
    assert read("--attention-head-type multiquery").model.num_query_groups == 1
    assert read("--attention-head-type multihead").model.num_query_groups == 16
    wide = read("--swiglu --hidden-dim-multiplier 1.3 --multiple-of 1024").model
    assert wide.ffn_hidden_size == 4096  # 1.3 x 8/3 x 1024 = 3549


def test_latent_attention_and_shared_experts_by_the_names_of_pais_fork() -> None:
    words = "--kv-lora-rank 512 --qk-nope-head-dim 96 --qk-rope-head-dim 32 --v-head-dim 96"
    found = read(f"{words} --normalization RMSNorm --qk-layernorm").model.mla
    assert found is not None
    assert (found.kv_lora_rank, found.qk_nope_head_dim, found.qk_rope_head_dim) == (512, 96, 32)
    experts = "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 1408 --moe-grouped-gemm"
    for shared, width in (
        ("--enable-shared-expert --num-shared-experts 2", 2816),
        ("--enable-shared-expert --shared-moe-ffn-hidden-size 5632", 5632),
    ):
        moe = read(f"{experts} {shared}").model.moe
        assert moe is not None
        assert moe.shared_expert_ffn_hidden_size == width


def test_an_option_of_how_attention_is_scaled_does_not_make_it_another_model() -> None:
    assert read("--no-query-key-layer-scaling").model == read("").model


BLOOM = f"""{SHAPE.replace("--position-embedding-type rope", "")} --micro-batch-size 2 \
--position-embedding-type alibi --embed-layernorm --bf16 --tokenizer-type PretrainedFromHF \
--tokenizer-name-or-path bigscience/tokenizer --pad-vocab-size-to 250880 \
--pp-partition-method 'type:transformer|embedding' --deepspeed --zero-stage 0 \
--deepspeed_config ds.json --pipeline-model-parallel-size 2 --train-samples 1000"""
JSON = {
    "train_micro_batch_size_per_gpu": 2,
    "train_batch_size": 16,
    "zero_optimization": {"stage": 0},
    "bf16": {"enabled": True},
}


def test_bigsciences_launches_are_read() -> None:
    files = {**files_of("", BLOOM), "ds.json": json.dumps(JSON)}
    framework = framework_of(files, None)
    assert framework.name == "deepspeed"
    assert framework.read is not None
    reading = framework.read(files, None)
    assert reading.refusals == ()
    assert (reading.model.vocab_size, reading.model.position) == (250_880, "none")
    # The bf16 optimizer shards its states though no ZeRO is asked for.
    assert (reading.plan.zero_stage, reading.training.gradient_dtype) == (1, "fp32")


def test_layers_of_unlike_experts_are_refused() -> None:
    framework = get("deepspeed")
    assert framework.read is not None
    with pytest.raises(Unreadable, match="--num-experts 64 128"):
        framework.read(files_of("--deepspeed --num-experts 64 128"), None)


SLIME = f"""--actor-num-nodes 2 --actor-num-gpus-per-node 8 --rollout-batch-size 32 \
--n-samples-per-prompt 8 --rollout-max-response-len 8192 --use-dynamic-batch-size \
--tensor-model-parallel-size 2 {SHAPE.split("--seq-length")[0]} --vocab-size 32000 \
--use-rotary-position-embeddings --advantage-estimator grpo"""


def test_the_training_part_of_slime_is_read() -> None:
    text = f"ray job submit -- python3 train.py {SLIME}\n"
    framework = framework_of({"run.sh": text}, None)
    assert framework.read is not None
    reading = framework.read({"run.sh": text}, None)
    assert (reading.nodes, reading.accelerators_per_node) == (2, 8)
    assert (reading.training.seq_length, reading.training.global_batch_size) == (8192, 256)
    assert (reading.plan.tp, reading.plan.dp, reading.plan.zero_stage) == (2, 8, 1)


def test_slime_fills_micro_batches_and_varies_lengths_whatever_megatrons_options_say() -> None:
    more = (
        "--seq-length 4096 --micro-batch-size 8 --use-dynamic-batch-size --max-tokens-per-gpu 9216"
    )
    text = f"ray job submit -- python3 train.py {SLIME} {more}\n"
    read = get("slime").read
    assert read is not None
    reading = read({"run.sh": text}, None)
    assert (reading.training.seq_length, reading.plan.micro_batch_size) == (8192, 1)


def test_a_setting_that_says_something_is_off_changes_nothing() -> None:
    off = Setting(name="--vision-model-type", value="none", file="a", line=1)
    architecture.refuse([off])
    with pytest.raises(Unreadable):
        architecture.refuse([off.model_copy(update={"value": "vit"})])


def test_options_of_forks_by_other_names() -> None:
    words = "--overlapped-distributed-optimizer --RMSNorm --causal-lm"
    found = read(words)
    assert found.plan.zero_stage == 1
    assert (found.model.norm, found.model.tied_embeddings) == ("rmsnorm", False)
    experts = read("--moe-num-experts 8 --moe-top-k 2").model.moe
    assert experts is not None
    assert (experts.num_experts, experts.top_k) == (8, 2)
    with pytest.raises(Unreadable, match="splits experts over as many ranks"):
        read("--moe-num-experts 8 --moe-expert-model-parallelism")


def test_the_tokenizer_of_a_file_by_bigcodes_option() -> None:
    usual = USUAL.replace("--vocab-size 32000", "")
    found = read("--tokenizer-file /x/tokenizer-starcoder/tokenizer.json", usual)
    assert found.model.vocab_size == 49_152


def test_what_upstream_refuses_is_said_of_a_fork() -> None:
    chosen = "--recompute-granularity full --recompute-num-layers 1 --recompute-method chunk"
    refused = read(chosen)
    assert any("cannot be 'chunk'" in one.reason.text for one in refused.refusals)
    fork = read(f"{chosen} --enable-zb-runtime")
    assert not any("cannot be 'chunk'" in one.reason.text for one in fork.refusals)
    assert any("upstream refuses: --recompute-method" in one for one in fork.assumed)


@pytest.mark.parametrize(("words", "gated"), [("", True), ("--normalization LayerNorm", False)])
def test_a_program_of_llamas_name_builds_its_layers(words: str, gated: bool) -> None:
    launch = f"torchrun --nproc_per_node 8 pretrain_llama.py {USUAL} {words}"
    found = megatron.read(LaunchFiles({"run.sh": launch}), None)
    assert found.model.gated_mlp is gated
    assert any("build LLaMA's layers" in one for one in found.assumed) is gated


def test_slimes_model_options_are_asked_for() -> None:
    words = "--actor-num-nodes 1 --actor-num-gpus-per-node 8 --hf-checkpoint /x/Qwen3-4B"
    launch = f"python3 train.py {words} --global-batch-size 8 --rollout-batch-size 8"
    with pytest.raises(Unreadable, match=r"sets MODEL_ARGS.*--hf-checkpoint /x/Qwen3-4B"):
        megatron.read(LaunchFiles({"run.sh": launch}), None)


def test_a_tokenizer_that_upstream_does_not_know_is_a_forks() -> None:
    fork = read("--tokenizer-type QwenTokenizer")
    assert fork.refusals == ()
    assert any("upstream refuses: --tokenizer-type cannot be" in one for one in fork.assumed)


def test_a_folder_with_a_name_of_its_own_has_a_vocabulary_of_its_own() -> None:
    usual = USUAL.replace("--vocab-size 32000 ", "")
    words = "--tokenizer-type GPT2BPETokenizer --vocab-file {0}/vocab.json --merge-file {0}/m.txt"
    assert "GPT2BPETokenizer has 50257 tokens" in read(words.format("/data"), usual).assumed
    own = read(words.format("/data/europa-tokenizer"), usual)
    assert any("the files do not give the vocabulary size" in one for one in own.assumed)


def test_the_local_layers_have_their_own_attention() -> None:
    """--attention-backend chooses among Transformer Engine's."""
    local = read("--transformer-impl local --attention-backend fused")
    assert local.plan.attention_kernel == "unfused"
    assert "--transformer-impl local has unfused attention" in local.assumed
    assert read("--attention-backend fused").plan.attention_kernel == "flash"
