"""Megatron-LM launch scripts read back: specs, plan, and what Megatron-LM would refuse."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from cost_models.catalog import models
from cost_models.catalog.names import UnknownName
from cost_models.plans import RECOMPUTE_MODULES, ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.frameworks import scripts
from planner.frameworks.arguments import Arguments, of_call
from planner.frameworks.base import Unsupported
from planner.frameworks.bash import Launch
from planner.frameworks.megatron import layout
from planner.frameworks.reading import Reading, Unreadable

PACKAGE = "planner.frameworks.megatron"
TITLE = "Megatron-LM"
REQUIRED = ("--hidden-size", "--num-attention-heads")
POSITIONS = {
    "learned_absolute": "learned",
    "rope": "rope",
    "yarn": "rope",
    "mrope": "rope",
    "none": "none",
}
# Vocabularies that a kind of tokenizer fixes.
TOKENIZERS = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
ANY_VOCABULARY = 128_256
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
CP_KINDS = {"p2p": "p2p", "all_gather": "all_gather", "allgather": "all_gather", "a2a": "a2a"}
MINDSPEED = re.compile(r"\bmindspeed(?:_llm)?\b", re.IGNORECASE)
# Options that only MindSpeed's parser has.
MINDSPEED_OPTIONS = frozenset(
    re.findall(
        r"\S+",
        "--use-fused-rmsnorm --use-fused-swiglu --use-fused-rotary-pos-emb --use-ascend-mc2 "
        "--use-ascend-coc --context-parallel-algo --ulysses-degree-in-cp --schedules-method "
        "--noop-layers --reuse-fp32-param --recompute-activation-function --swap-attention "
        "--use-cp-send-recv-overlap --num-layer-list --tp-2d --moe-fb-overlap "
        "--npu-deterministic --optimization-level --unaligned-linear --variable-seq-lengths "
        "--pipeline-num-transformer-layers --tokenizer-name-or-path",
    )
)
# Options that are there only to be refused, and what to give instead.
GONE = {
    "--batch-size": "--micro-batch-size",
    "--model-parallel-size": "--tensor-model-parallel-size",
    "--warmup": "--lr-warmup-fraction",
    "--checkpoint-activations": "--recompute-activations",
    "--no-position-embedding": "--position-embedding-type",
}
# Pairs that the parser refuses together.
EXCLUSIVE = (
    ("--bf16", "--fp16"),
    ("--fp8-format", "--fp4-format"),
    ("--num-layers", "--encoder-num-layers"),
    ("--seq-length", "--encoder-seq-length"),
    ("--train-iters", "--train-samples"),
    ("--train-iters", "--lr-decay-samples"),
    ("--train-iters", "--lr-warmup-samples"),
    ("--train-samples", "--lr-decay-iters"),
    ("--train-samples", "--lr-warmup-iters"),
    ("--mock-data", "--data-path"),
    ("--step-batch-size-schedule", "--global-batch-size"),
    ("--use-torch-fsdp2", "--use-distributed-optimizer"),
    ("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"),
    ("--num-layers-per-virtual-pipeline-stage", "--pipeline-model-parallel-layout"),
    ("--num-virtual-stages-per-pipeline-rank", "--pipeline-model-parallel-layout"),
    ("--num-layers-per-virtual-pipeline-stage", "--decoder-first-pipeline-num-layers"),
    ("--num-layers-per-virtual-pipeline-stage", "--decoder-last-pipeline-num-layers"),
)
# Options that the parser refuses without one of some others.
NEEDS = (
    ("--overlap-param-gather", ("--overlap-grad-reduce",)),
    (
        "--overlap-param-gather",
        ("--use-distributed-optimizer", "--use-megatron-fsdp", "--use-custom-fsdp"),
    ),
    ("--tp-comm-overlap", ("--sequence-parallel",)),
    ("--expert-model-parallel-size", ("--num-experts",)),
    ("--moe-ffn-hidden-size", ("--num-experts",)),
    ("--save", ("--save-interval",)),
    ("--fp8-param-gather", ("--fp8-format",)),
    (
        "--fp8-param-gather",
        (
            "--use-distributed-optimizer",
            "--use-torch-fsdp2",
            "--use-megatron-fsdp",
            "--use-custom-fsdp",
        ),
    ),
    ("--fp4-param-gather", ("--fp4-format",)),
)
# Options of an architecture that no plan of ours holds.
FOREIGN = ("--hybrid-layer-pattern", "--hybrid-override-pattern", "--is-hybrid-model")


def trains(launch: Launch) -> bool:
    """Whether a call looks like a training of the Megatron family."""
    return scripts.training(launch, "--num-layers")


def recognises(files: Mapping[str, str]) -> bool:
    """Whether some script calls a Megatron-LM training without DeepSpeed or MindSpeed."""
    if any(MINDSPEED.search(text) for text in files.values()):
        return False
    try:
        launch = scripts.training_call(files, trains, TITLE).launch
    except Unreadable:
        return False
    words = {word.text.partition("=")[0] for word in launch.arguments}
    foreign = launch.launcher == "deepspeed" or words & {"--deepspeed", "--deepspeed_config"}
    dims = words & {"--num-layers", "--micro-batch-size", "--tensor-model-parallel-size"}
    pretrains = launch.program.text.rsplit("/", 1)[-1].startswith("pretrain_")
    return bool(not foreign and not words & MINDSPEED_OPTIONS and (dims or pretrains))


@dataclass(frozen=True)
class Dialect:
    """Who else's launches are Megatron-LM's: its name, its parser, and what it says otherwise.

    model, plan: fields that replace those read as Megatron-LM would read them.
    """

    framework: str
    title: str
    package: str
    model: Callable[[Arguments, dict[str, Any]], dict[str, Any]] = lambda args, fields: {}
    plan: Callable[[Arguments, ParallelPlan], dict[str, Any]] = lambda args, plan: {}


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """What a launch script says.

    Raises Unreadable where it is no launch of Megatron-LM or leaves out what a model needs.
    """
    return read_as(Dialect("megatron", TITLE, PACKAGE), files, accelerators)


def read_as(dialect: Dialect, files: Mapping[str, str], accelerators: int | None) -> Reading:
    """What a launch script of a dialect says.

    Raises Unreadable as `read` does.
    """
    found = scripts.training_call(files, trains, dialect.title)
    launch = found.launch
    scripts.decoder_only(launch)
    args = of_call(dialect.title, dialect.package, launch)
    for note in found.notes:
        args.assume(note)
    for option in FOREIGN:
        if args.has(option):
            setting = args.given[option]
            raise Unreadable(
                f"{option}: a hybrid model is no transformer", setting.file, setting.line
            )
    reached = scripts.world(launch)
    size = scripts.accelerators(found, reached, accelerators)
    _refused(args)
    _environment(args, launch)
    try:
        fields = _model(args, launch)
        model = ModelSpec(**{**fields, **dialect.model(args, fields)})
        plan, training = _plan(args, model, size)
        plan = ParallelPlan(**{**plan.model_dump(), **dialect.plan(args, plan)})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise Unreadable(
            f"{where}: {first['msg']}" if where else first["msg"],
            launch.program.file,
            launch.program.line,
        ) from None
    return Reading(
        framework=dialect.framework,
        model=model,
        training=training,
        plan=plan,
        nodes=reached.nodes,
        accelerators_per_node=reached.per_node,
        settings=(*scripts.options(launch.before), *args.settings),
        unknown=tuple(args.unknown),
        unread=args.unread(),
        assumed=tuple(args.assumed),
        refusals=tuple(args.refusals),
    )


def _refused(args: Arguments) -> None:
    """Options that are gone, and pairs that do not go together."""
    for option, instead in GONE.items():
        if option in args.given and not (
            option == "--no-position-embedding" and _position(args) == "rope"
        ):
            args.refuse(f"{option} is no longer valid, {instead} is", option)
    for one, other in EXCLUSIVE:
        if one in args.given and other in args.given:
            args.refuse(f"{one} and {other} exclude each other", one)
    for option, others in NEEDS:
        if option in args.given and not any(other in args.given for other in others):
            if option == "--expert-model-parallel-size" and args.integer(option, 1) == 1:
                continue
            args.refuse(f"{option} needs {' or '.join(others)}", option)


def _environment(args: Arguments, launch: Launch) -> None:
    """CUDA_DEVICE_MAX_CONNECTIONS, which its parser asks of the environment."""
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    value = launch.environment.get(name)
    tp, cp = (
        args.integer("--tensor-model-parallel-size", 1),
        args.integer("--context-parallel-size", 1),
    )
    if args.has("--use-megatron-fsdp", "--use-custom-fsdp", "--use-torch-fsdp2"):
        if value == "1":
            args.refuse(
                f"its FSDP refuses {name}=1",
                "--use-megatron-fsdp",
                "--use-torch-fsdp2",
                "--use-custom-fsdp",
            )
    elif (tp > 1 or cp > 1) and value != "1":
        args.assume(
            f"{name} is 1 in the environment (the script "
            f"{f'sets it to {value}' if value else 'does not set it'}): before Blackwell "
            f"{TITLE} refuses to start with tp or cp otherwise"
        )


# The model.


def _required(args: Arguments, launch: Launch, name: str, old: str = "") -> int:
    for option in (name, old):
        if option and args.has(option):
            return args.positive(option)
    raise Unreadable(f"{name} is missing", launch.program.file, launch.program.line)


def _position(args: Arguments) -> str:
    if args.has("--use-rotary-position-embeddings"):
        return "rope"
    kind = args.text("--position-embedding-type", "learned_absolute")
    if kind not in POSITIONS:
        args.assume(f"{kind} positions have no place in a model: none taken")
    return POSITIONS.get(kind, "none")


def _vocabulary(args: Arguments) -> int:
    """--vocab-size, or what the tokenizer is known to have, or a guess that is said."""
    kind = args.text("--tokenizer-type")
    args.has("--padded-vocab-size", "--make-vocab-size-divisible-by")
    if args.has("--vocab-size"):
        if kind.startswith("Null"):
            args.assume(
                "NullTokenizer has the --vocab-size tokens given (before core 0.18 one more)"
            )
        return args.positive("--vocab-size")
    if args.has("--padded-vocab-size"):
        args.assume("the vocabulary is as large as --padded-vocab-size")
        return args.positive("--padded-vocab-size")
    if not kind and args.has("--merge-file"):
        kind = "GPT2BPETokenizer"
    if kind in TOKENIZERS:
        args.assume(f"{kind} has {TOKENIZERS[kind]} tokens")
        return TOKENIZERS[kind]
    name = args.given.get("--tokenizer-model")
    text = name.value if name is not None and isinstance(name.value, str) else ""
    for part in (text, text.rsplit("/", 1)[-1]):
        try:
            size = models.model(part).vocab_size
        except UnknownName:
            continue
        args.assume(f"the tokenizer of {text} has {size} tokens")
        return size
    args.assume(
        f"the files do not say how many tokens the vocabulary has: {ANY_VOCABULARY} taken; give "
        "--vocab-size"
    )
    return ANY_VOCABULARY


def _model(args: Arguments, launch: Launch) -> dict[str, Any]:
    layers = _required(args, launch, "--num-layers", "--encoder-num-layers")
    hidden, heads = (_required(args, launch, name) for name in REQUIRED)
    seq = _required(args, launch, "--seq-length", "--encoder-seq-length")
    gated = args.has("--swiglu", "--quick-geglu")
    ffn = int((4 * hidden * 2 / 3) / 64) * 64 if args.has("--swiglu") else 4 * hidden
    ffn = args.positive("--ffn-hidden-size", max(ffn, 1))
    if not args.has("--kv-channels") and hidden % heads:
        args.refuse(
            f"--hidden-size {hidden} is not a multiple of --num-attention-heads {heads}; give "
            "--kv-channels",
            "--hidden-size",
        )
    latent = args.has("--multi-latent-attention")
    groups = heads
    if args.has("--group-query-attention"):
        groups = args.positive("--num-query-groups", 1)
    elif args.integer("--num-query-groups", heads) not in (heads, 1):
        args.assume("--num-query-groups is ignored without --group-query-attention")
    if latent:
        groups = heads
    if heads % groups:
        args.refuse(
            f"--num-attention-heads {heads} is not a multiple of --num-query-groups {groups}",
            "--num-query-groups",
        )
        groups = heads
    position = _position(args)
    rows = args.integer("--max-position-embeddings")
    if rows < seq:
        args.refuse(
            f"--max-position-embeddings is {rows or 'missing'}; at least the sequence length "
            f"{seq} is needed",
            "--max-position-embeddings",
            "--seq-length",
        )
    biases = not args.has("--disable-bias-linear")
    moe = _experts(args, layers, ffn, biases)
    dense = moe is None or any(
        i < moe["num_dense_layers"] or (i - moe["layer_offset"]) % moe["layer_frequency"]
        for i in range(layers)
    )
    qk_norm = args.has("--qk-layernorm")
    if latent and not qk_norm:
        args.assume("latent attention is costed with --qk-layernorm, which is not given")
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_query_groups": groups,
        "head_dim": args.positive("--kv-channels", max(hidden // heads, 1)),
        "ffn_hidden_size": ffn,
        "gated_mlp": gated,
        "vocab_size": _vocabulary(args),
        "tied_embeddings": not args.has("--untie-embeddings-and-output-weights"),
        "qkv_bias": (biases or args.has("--add-qkv-bias")) and not latent,
        "attention_output_bias": biases,
        "mlp_bias": biases and dense,
        "norm": "rmsnorm" if args.text("--normalization") == "RMSNorm" else "layernorm",
        "qk_norm": "head" if qk_norm and not latent else "none",
        "attention_sinks": _sinks(args),
        "position": position,
        "max_position_embeddings": rows or seq if position == "learned" or rows > seq else None,
        "hidden_dropout": _share(args, "--hidden-dropout"),
        "attention_dropout": _share(args, "--attention-dropout"),
        "mla": _latent(args) if latent else None,
        "moe": moe,
        "mtp_num_layers": args.integer("--mtp-num-layers"),
        **_window(args, layers),
    }


def _share(args: Arguments, name: str) -> float:
    value = args.number(name, 0.1)
    if not 0 <= value < 1:
        args.refuse(f"{name} is {value}; a share of 0 to 1 is needed", name)
        return 0.0
    return value


def _sinks(args: Arguments) -> bool:
    kind = args.text("--softmax-type", "vanilla")
    if kind == "off-by-one":
        args.assume("the off-by-one softmax costs as the plain one")
    return kind == "learnable"


def _latent(args: Arguments) -> dict[str, Any]:
    return {
        "q_lora_rank": args.positive("--q-lora-rank") if args.has("--q-lora-rank") else None,
        "kv_lora_rank": args.positive("--kv-lora-rank", 32),
        "qk_nope_head_dim": args.positive("--qk-head-dim", 128),
        "qk_rope_head_dim": args.positive("--qk-pos-emb-head-dim", 64),
        "v_head_dim": args.positive("--v-head-dim", 128),
    }


def _window(args: Arguments, layers: int) -> dict[str, Any]:
    text = args.text("--window-size")
    if not text:
        return {}
    match = re.fullmatch(r"\(?\s*(\d{1,8})\s*,\s*(?:0|-1)\s*\)?", text)
    if match is None:
        args.assume(f"--window-size {text} has no place in a model: full attention taken")
        return {}
    skip = args.text("--window-attn-skip-freq")
    pattern = None
    if skip:
        try:
            kinds = _pattern(skip, layers)
        except ValueError as error:
            args.refuse(f"--window-attn-skip-freq {skip}: {error}", "--window-attn-skip-freq")
            return {"sliding_window": int(match[1]) + 1}
        if re.fullmatch(r"\d+", skip):
            pattern = int(skip)
        else:
            full = kinds.count(0)
            pattern = max(round(layers / full), 1) if full else None
            args.assume(f"of {layers} layers {full} attend fully, spread evenly")
    return {"sliding_window": int(match[1]) + 1, "full_attention_period": pattern or None}


_ITEM = re.compile(r"\[([\d,\s]*)\](?:\s*\*\s*(\d{1,5}))?")


def _pattern(text: str, layers: int) -> list[int]:
    """The list of zeros and ones that a layer pattern says, `N` or `([0]*1+[1]*2)*3`.

    Raises ValueError where it is none, or not one of each layer.
    """
    plain = re.sub(r"\s", "", text)
    if re.fullmatch(r"\d{1,6}", plain):
        step = int(plain)
        if step < 1:
            raise ValueError("a period of at least 1 is needed")
        return [int(i % step == 0) for i in range(layers)]
    group = re.fullmatch(r"\((.*)\)(?:\*(\d{1,5}))?", plain)
    body, times = (group[1], int(group[2] or 1)) if group else (plain, 1)
    found: list[int] = []
    for part in body.split("+"):
        item = _ITEM.fullmatch(part)
        if item is None:
            raise ValueError("it is no sum of lists")
        values = [int(value) for value in item[1].split(",") if value]
        found += values * min(int(item[2] or 1), layers + 1)
        if len(found) > layers:
            break
    found = (found * min(times, layers + 1))[: layers + 1]
    if len(found) != layers or not set(found) <= {0, 1}:
        raise ValueError(f"it does not say 0 or 1 for each of {layers} layers")
    return found


def _kinds(args: Arguments, layers: int) -> dict[str, int]:
    """Which layers have experts, as the three numbers that a model has for it."""
    text = args.text("--moe-layer-freq", "1")
    try:
        pattern = _pattern(text, layers)
        if 1 not in pattern:
            raise ValueError("no layer has experts")
    except ValueError as error:
        args.refuse(f"--moe-layer-freq {text}: {error}", "--moe-layer-freq")
        pattern = [1] * layers
    first = pattern.index(1)
    for dense in (0, first):
        for step in range(1, min(layers, 64) + 1):
            for offset in range(step):
                if all(
                    bool(kind) == (i >= dense and (i - offset) % step == 0)
                    for i, kind in enumerate(pattern)
                ):
                    return {
                        "num_dense_layers": dense,
                        "layer_frequency": step,
                        "layer_offset": offset,
                    }
    dense = pattern.count(0)
    args.assume(f"--moe-layer-freq {text}: the {dense} dense layers are taken to come first")
    return {"num_dense_layers": dense, "layer_frequency": 1, "layer_offset": 0}


def _experts(args: Arguments, layers: int, ffn: int, biases: bool) -> dict[str, Any] | None:
    if not args.has("--num-experts"):
        return None
    count = args.positive("--num-experts")
    if count < 2:
        args.assume("one expert is a dense layer")
        return None
    top = args.positive("--moe-router-topk", 2)
    if top > count:
        args.refuse(f"--moe-router-topk {top} of {count} experts", "--moe-router-topk")
        top = count
    if not args.has("--moe-grouped-gemm"):
        args.assume("experts are costed as --moe-grouped-gemm runs them, which is not given")
    groups = args.integer("--moe-router-num-groups") or None
    chosen = args.integer("--moe-router-group-topk") or None
    if (groups is None) != (chosen is None) or (
        groups and chosen and (count % groups or chosen > groups)
    ):
        args.refuse(
            f"--moe-router-group-topk {chosen} of --moe-router-num-groups {groups} with {count} "
            "experts: groups of equal size and a number of them are needed",
            "--moe-router-num-groups",
            "--moe-router-group-topk",
        )
        groups = chosen = None
    capacity = args.number("--moe-expert-capacity-factor")
    score = args.text("--moe-router-score-function", "softmax")
    correction = args.has("--moe-router-enable-expert-bias")
    if correction and score == "softmax":
        args.refuse(
            "--moe-router-enable-expert-bias needs --moe-router-score-function sigmoid",
            "--moe-router-enable-expert-bias",
        )
    args.has("--moe-router-pre-softmax", "--moe-router-dtype")
    return {
        "num_experts": count,
        "top_k": top,
        "expert_ffn_hidden_size": args.positive("--moe-ffn-hidden-size", ffn),
        "shared_expert_ffn_hidden_size": args.integer("--moe-shared-expert-intermediate-size"),
        "shared_expert_gate": args.has("--moe-shared-expert-gate"),
        "num_groups": groups,
        "top_k_groups": chosen,
        "router_bias": biases,
        "expert_bias": biases,
        "score_correction_bias": correction,
        "capacity_factor": capacity if capacity > 0 else None,
        **_kinds(args, layers),
    }


# Training and plan.


def _training(args: Arguments, batch: int) -> dict[str, Any]:
    seq = args.positive("--seq-length" if args.has("--seq-length") else "--encoder-seq-length")
    half = args.has("--fp16") and not args.has("--bf16")
    precision = "fp16" if half else "bf16"
    if not args.has("--fp16", "--bf16"):
        args.assume("it trains in fp32, which no plan holds: bf16 taken")
    for name in ("fp8", "fp4"):
        if args.has(f"--{name}-format"):
            precision = name
            if half:
                args.assume(f"{name} beside fp16 weights is costed as beside bf16 ones")
    recipe = args.text("--fp8-recipe", "delayed")
    if recipe == "custom":
        args.assume("a custom fp8 recipe costs as the tensorwise one")
    args.has("--fp4-recipe")
    gradients = "fp32"
    if args.has("--accumulate-allreduce-grads-in-fp32"):
        pass
    elif half:
        gradients = "fp16"
    elif args.has("--grad-reduce-in-bf16") or args.text("--main-grads-dtype") == "bf16":
        gradients = "bf16"
    optimizer = args.text("--optimizer", "adam")
    if optimizer not in ("adam", "sgd"):
        args.assume(f"the optimizer {optimizer} costs as Adam")
        optimizer = "adam"
    fp8 = precision == "fp8"
    return {
        "seq_length": seq,
        "global_batch_size": batch,
        "precision": precision,
        "fp8_recipe": ("tensorwise" if recipe == "custom" else recipe) if fp8 else "tensorwise",
        "fp8_param_gather": args.has("--fp8-param-gather") and fp8,
        "gradient_dtype": gradients,
        "gradient_reduce_dtype": gradients,
        "optimizer_state_dtype": _moments(args),
        "optimizer": optimizer,
        "tokens": _tokens(args, seq, batch),
    }


def _moments(args: Arguments) -> str:
    """The type of Adam's moments, which only the precision-aware optimizer may choose."""
    first, second = args.text("--exp-avg-dtype", "fp32"), args.text("--exp-avg-sq-dtype", "fp32")
    if args.text("--main-params-dtype", "fp32") != "fp32":
        args.assume("master weights are costed in fp32")
    if not args.has("--use-precision-aware-optimizer"):
        if (first, second) != ("fp32", "fp32"):
            args.refuse(
                "--exp-avg-dtype and --exp-avg-sq-dtype need --use-precision-aware-optimizer",
                "--exp-avg-dtype",
                "--exp-avg-sq-dtype",
            )
        return "fp32"
    sizes = {"fp32": "fp32", "bf16": "bf16", "fp16": "bf16", "fp8": "fp8"}
    if first != second or first == "fp16":
        larger = min((first, second), key=list(sizes).index)
        args.assume(f"moments in {first} and {second} are costed as {sizes[larger]}")
        return sizes[larger]
    return sizes[first]


def _tokens(args: Arguments, seq: int, batch: int) -> float | None:
    """Tokens of the whole training; a run on mock data is none."""
    iterations, samples = args.integer("--train-iters"), args.integer("--train-samples")
    if args.has("--mock-data") or max(iterations, samples) < 1:
        return None
    return float(samples * seq if samples > 0 else iterations * batch * seq)


def _plan(args: Arguments, model: ModelSpec, size: int) -> tuple[ParallelPlan, TrainingSpec]:
    tp = args.positive("--tensor-model-parallel-size")
    pp = args.positive("--pipeline-model-parallel-size")
    cp = args.positive("--context-parallel-size")
    if size % (tp * pp * cp):
        args.refuse(
            f"{size} accelerators are not a multiple of tp {tp} x cp {cp} x pp {pp} = "
            f"{tp * pp * cp}",
            "--tensor-model-parallel-size",
            "--pipeline-model-parallel-size",
            "--context-parallel-size",
            code="world_size",
        )
    dp = max(size // (tp * pp * cp), 1)
    for name in ("--tensor-parallel-num-weight-shards", "--hierarchical-context-parallel-sizes"):
        if args.has(name):
            args.assume(f"{name} has no place in a plan and is left out")
    if not args.has("--micro-batch-size"):
        args.refuse("--micro-batch-size is missing; 1 taken", code="batch_identity")
    micro = args.positive("--micro-batch-size")
    if args.has("--rampup-batch-size", "--step-batch-size-schedule"):
        args.assume("the batch is costed at its full size, after the ramp")
    batch = args.positive("--global-batch-size", micro * dp)
    training = TrainingSpec(**_training(args, batch))
    etp = args.positive("--expert-tensor-parallel-size", tp)
    zero, shard = _sharding(args, dp * cp)
    vpp, stages = _stages(args, model, pp)
    fields: dict[str, Any] = {
        "tp": tp,
        "sequence_parallel": args.has("--sequence-parallel") and tp > 1,
        "cp": cp,
        "cp_kind": _cp_kind(args, cp),
        "pp": pp,
        "vpp": vpp,
        "dp": dp,
        "dp_shard": shard,
        "ep": args.positive("--expert-model-parallel-size") if model.moe is not None else 1,
        "etp": etp if model.moe is not None else 1,
        "zero_stage": zero,
        "micro_batch_size": micro,
        "schedule": "interleaved-1f1b" if vpp > 1 else "1f1b",
        "rank_order": "tp-cp-ep-pp-dp" if args.has("--use-tp-pp-dp-mapping") else "tp-cp-ep-dp-pp",
        "offload_optimizer": _offloads(args),
        "offload_activations": _offloads_activations(args, model),
        "attention_kernel": _attention(args),
        "cross_entropy": _cross_entropy(args),
        "moe_dispatcher": _dispatcher(args) if model.moe is not None else "alltoall",
        "overlap_grad_reduce": args.has("--overlap-grad-reduce"),
        "overlap_param_gather": args.has("--overlap-param-gather"),
        "overlap_tp": args.has("--tp-comm-overlap"),
        "overlap_p2p": not args.has("--no-overlap-p2p-communication"),
        "overlap_ep": args.has("--overlap-moe-expert-parallel-comm"),
        "stack": "megatron",
        **_recompute(args),
        **stages,
    }
    # What a switch of these says is the same as what is costed, or costs nothing that is.
    args.has("--ckpt-format", "--no-gradient-accumulation-fusion", "--use-mcore-models")
    args.has("--overlap-cpu-optimizer-d2h-h2d", "--eval-iters", "--log-interval")
    args.has("--log-throughput", "--lr")
    return ParallelPlan(**fields), training


def _sharding(args: Arguments, ranks: int) -> tuple[int, int]:
    """(zero_stage, dp_shard)."""
    zero = 1 if args.has("--use-distributed-optimizer") else 0
    if args.has("--use-megatron-fsdp", "--use-custom-fsdp"):
        if not args.has("--data-parallel-sharding-strategy"):
            args.assume(
                "without --data-parallel-sharding-strategy its FSDP shards weights too (ZeRO 3; "
                "core 0.12 shards nothing)"
            )
        zero = SHARDING[args.text("--data-parallel-sharding-strategy", "optim_grads_params")]
        if args.text("--ckpt-format", "torch_dist") != "fsdp_dtensor" and not args.has(
            "--use-custom-fsdp"
        ):
            args.refuse("its FSDP needs --ckpt-format fsdp_dtensor", "--use-megatron-fsdp")
    elif args.text("--ckpt-format") == "fsdp_dtensor":
        args.refuse("--ckpt-format fsdp_dtensor needs --use-megatron-fsdp", "--ckpt-format")
    if args.has("--use-torch-fsdp2"):
        args.assume("torch's FSDP2 is costed as Megatron's FSDP (ZeRO 3)")
        zero = 3
    copies = args.positive("--num-distributed-optimizer-instances")
    if copies == 1 or zero == 0:
        return zero, 0
    if ranks % copies:
        args.refuse(
            f"{ranks} ranks of dp x cp are not a multiple of "
            f"--num-distributed-optimizer-instances {copies}",
            "--num-distributed-optimizer-instances",
            code="zero_stage",
        )
        return zero, 0
    return zero, ranks // copies


def _cp_kind(args: Arguments, cp: int) -> str:
    kinds = args.words("--cp-comm-type") or ("p2p",)
    if cp > 1 and (len(set(kinds)) > 1 or kinds[0] not in CP_KINDS):
        args.assume(
            f"context parallelism by {', '.join(dict.fromkeys(kinds))} is costed as "
            f"{CP_KINDS.get(kinds[0], 'p2p')}"
        )
    return CP_KINDS.get(kinds[0], "p2p")


def _recompute(args: Arguments) -> dict[str, Any]:
    kind = args.text("--recompute-granularity", "none")
    if args.has("--recompute-activations"):
        kind = "selective"
    method, layers = args.text("--recompute-method"), args.integer("--recompute-num-layers")
    modules = args.words("--recompute-modules") or ("core_attn",)
    if kind == "full":
        if not method or layers < 1:
            args.refuse(
                "full recompute needs --recompute-method and --recompute-num-layers; uniform and 1 "
                "taken where they are missing",
                "--recompute-granularity",
                code="recompute",
            )
        return {
            "recompute": "full",
            "recompute_method": method or "uniform",
            "recompute_num_layers": max(layers, 1),
        }
    if kind == "none":
        return {}
    if method or layers:
        args.refuse(
            "--recompute-method and --recompute-num-layers go with full recompute only",
            "--recompute-method",
            "--recompute-num-layers",
            code="recompute",
        )
    kept = tuple(module for module in dict.fromkeys(modules) if module in RECOMPUTE_MODULES)
    if missing := [module for module in modules if module not in kept]:
        args.assume(f"recompute of {', '.join(missing)} has no place in a plan and is left out")
    if not kept:
        return {}
    return {"recompute": "selective", "recompute_modules": kept}


def _offloads(args: Arguments) -> bool:
    if not args.has("--optimizer-cpu-offload"):
        return False
    share = args.number("--optimizer-offload-fraction", 1.0)
    if share <= 0:
        return False
    if share < 1:
        args.assume(f"offloading {share:.0%} of the optimizer is costed as offloading all of it")
    return True


def _offloads_activations(args: Arguments, model: ModelSpec) -> bool:
    layers = args.integer("--cpu-offloading-num-layers")
    if 0 < layers != model.num_layers - 1:
        args.assume(
            f"offloading the activations of {layers} layers is costed as of all but the last"
        )
    return layers > 0


def _attention(args: Arguments) -> str:
    backend = args.text("--attention-backend", "auto")
    args.has("--use-flash-attn")
    if backend == "local" and args.words("--spec")[:1] != ("local",):
        args.refuse("--attention-backend local needs --spec local", "--attention-backend")
    plain = args.text("--transformer-impl") == "local" and not args.has("--use-flash-attn")
    if backend == "auto" and plain:
        args.assume("--transformer-impl local computes unfused attention")
        backend = "local"
    return "unfused" if backend in ("unfused", "local") else "flash"


def _cross_entropy(args: Arguments) -> str:
    implementation = args.text("--cross-entropy-fusion-impl", "native")
    if not args.has("--cross-entropy-loss-fusion"):
        return "unfused"
    return "fused" if implementation == "native" else "in_place"


def _dispatcher(args: Arguments) -> str:
    kind = args.text("--moe-token-dispatcher-type", "allgather")
    backend = args.text("--moe-flex-dispatcher-backend", "deepep")
    args.has("--moe-enable-deepep")
    if kind == "flex":
        if backend != "deepep":
            args.assume(f"the {backend} dispatcher is costed as deepep")
        return "deepep"
    return "allgather" if kind == "allgather" else "alltoall"


def _stages(args: Arguments, model: ModelSpec, pp: int) -> tuple[int, dict[str, Any]]:
    """(vpp, the fields that say how layers fall on stages)."""
    text = args.text("--pipeline-model-parallel-layout")
    first = args.integer("--decoder-first-pipeline-num-layers")
    last = args.integer("--decoder-last-pipeline-num-layers")
    if text:
        return _laid_out(args, model, pp, text)
    extra = [
        int(args.has("--account-for-embedding-in-pipeline-split")),
        int(args.has("--account-for-loss-in-pipeline-split")),
    ]
    per_stage, rest = divmod(model.num_layers + sum(extra), pp)
    if sum(extra) and (first or last):
        args.refuse(
            "--account-for-embedding-in-pipeline-split and its like exclude "
            "--decoder-first-pipeline-num-layers and its like",
            "--account-for-embedding-in-pipeline-split",
            "--account-for-loss-in-pipeline-split",
        )
    elif sum(extra) and pp > 1:
        first, last = ((per_stage - one) * one for one in extra)
    vpp = args.positive("--num-virtual-stages-per-pipeline-rank")
    chunk = args.integer("--num-layers-per-virtual-pipeline-stage")
    if chunk > 0 and vpp == 1:
        if rest or per_stage % chunk:
            args.refuse(
                f"the {model.num_layers} layers over pp {pp} do not split into chunks of {chunk}",
                "--num-layers-per-virtual-pipeline-stage",
                code="vpp_layout",
            )
        vpp = max(per_stage // chunk, 1)
    return vpp, {"first_stage_layers": max(first, 0), "last_stage_layers": max(last, 0)}


def _laid_out(args: Arguments, model: ModelSpec, pp: int, text: str) -> tuple[int, dict[str, Any]]:
    """The plan whose layout is that of the string, or the nearest with its layers per stage."""
    name, shown = "--pipeline-model-parallel-layout", text[:100]
    try:
        parts = layout.parsed(text)
        counts = [part.count("t") for part in parts]
        if len(parts) % pp:
            raise ValueError(f"{len(parts)} chunks are no multiple of pp {pp}")
        if sum(counts) != model.num_layers:
            raise ValueError(f"it has {sum(counts)} of {model.num_layers} layers")
    except ValueError as error:
        args.refuse(f"{name} {shown}: {error}", name, code="vpp_layout")
        return 1, {}
    vpp = len(parts) // pp
    stages = tuple(sum(counts[stage::pp]) for stage in range(pp))
    ends: list[dict[str, Any]] = [
        {"first_stage_layers": stages[0], "last_stage_layers": stages[-1]},
        {"first_stage_layers": stages[0]},
        {"last_stage_layers": stages[-1]},
    ]
    candidates = [{"stage_layers": stages}] if vpp == 1 else [{}, *ends, {"stage_layers": stages}]
    schedule = "interleaved-1f1b" if vpp > 1 else "1f1b"
    for fields in candidates:
        plan = ParallelPlan(pp=pp, vpp=vpp, schedule=cast(Any, schedule), **cast(Any, fields))
        try:
            if list(layout.chunks(model, plan)) == counts:
                return vpp, fields
        except Unsupported:
            continue
    args.assume(f"{name}: chunks are taken to split the layers of their stage evenly")
    return vpp, {"stage_layers": stages if min(stages) > 0 else ()}
