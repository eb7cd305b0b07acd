"""Reads GPT-NeoX's configs, one file or several that are merged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from cost_models.package_files import table
from cost_models.spec import ModelSpec
from planner.frameworks import architecture, tokenizers, training_calls, yaml_files
from planner.frameworks.bash import slurm_variables
from planner.frameworks.given_values import Values, malformed
from planner.frameworks.gpt_neox.read_plan import plan_and_training
from planner.frameworks.gpt_neox.settings import EPSILONS, NUMERICS, POSITIONS
from planner.frameworks.launch_files import given_with
from planner.frameworks.read_results import Reading, Setting, Unreadable

KEYS = frozenset(table("planner.frameworks.gpt_neox", "keys.json")["keys"])
YAML, JSON = (".yml", ".yaml"), ".json"
MARK = re.compile(r"""^[ \t"'{]*pipe[_-]parallel[_-]size["']?[ \t]*:""", re.MULTILINE)
ANY_VOCABULARY = 50_432
NORMS = {**{name: name for name in EPSILONS}, "te_rmsnorm": "rmsnorm", "te_layernorm": "layernorm"}
# Other kinds of positions -> the kind without weights that they are costed as.
OTHER_POSITIONS = {"rpe": "none", "sinusoidal": "none"}
GATED = ("geglu", "reglu", "swiglu", "bilinear", "glu")
# Keys that do not change the model, although their names look like it.
SAME = frozenset(
    {"use_shared_fs", "use_flashattn_swiglu", "attention_type", "moe_type", "moe_loss_coeff"}
    | {"output_layer_parallelism", "scaled_upper_triang_masked_softmax_fusion"}
)
_IGNORED_PREFIXES = ("mamba_", "rwkv_", "te_")  # keys of kernels and of refused kinds of layers


_STARTER = "deepy.py"  # the program of GPT-NeoX that starts another by DeepSpeed


class Job(NamedTuple):
    nodes: int | None
    per_node: int | None
    total: int | None


def recognises(files: Mapping[str, str]) -> bool:
    """Whether some YAML or JSON has GPT-NeoX's pipe_parallel_size."""
    return any(name.endswith((*YAML, JSON)) and MARK.search(text) for name, text in files.items())


def read(files: Mapping[str, str], accelerators: int | None) -> Reading:
    """The specs and the plan of the configs, with the launch script and hostfile beside them.

    Raises Unreadable if there is no config or it lacks a field of the model.
    """
    given = given_with(files)
    settings, assumed = _settings(files)
    stated = {one.name: one for one in (*settings, *given.settings())}
    values = Values(stated, settings[0].file, assumed)
    job = _job(values, files)
    total = job.total or accelerators
    if total is None:
        raise Unreadable("a config alone has no number of processes: give a cluster", values.file)
    try:
        model = given.model or _model(values, files)
        training, plan = plan_and_training(values, total)
    except ValidationError as error:
        raise malformed(error, values.file) from None
    _say_method(values)
    unknown = tuple(one for one in settings if one.name.split(".")[0] not in KEYS | values.asked)
    left = tuple(one for one in settings if one.name not in values.asked)
    if given.model is None:
        architecture.refuse([one for one in left if _builds(one)])
    return Reading(
        framework="gpt-neox",
        model=model,
        training=training,
        plan=plan,
        nodes=job.nodes,
        accelerators_per_node=job.per_node,
        settings=settings,
        unknown=unknown,
        unread=tuple(one for one in left if one not in unknown),
        assumed=tuple(assumed),
        refusals=tuple(values.refusals),
    )


def _settings(files: Mapping[str, str]) -> tuple[tuple[Setting, ...], list[str]]:
    """The keys of all configs, with dashes as underscores, and notes on the files.

    A later file overrides an earlier one.
    """
    parsed = [
        yaml_files.read(text, name)
        for name, text in files.items()
        if name.endswith(YAML) or (name.endswith(JSON) and MARK.search(text))
    ]
    found = [one for config in parsed for one in config.settings()]
    if not found:
        raise Unreadable(f"there is no YAML (files: {', '.join(files) or 'none'})")
    settings = (one.model_copy(update={"name": one.name.replace("-", "_")}) for one in found)
    return tuple(settings), [note for config in parsed for note in config.notes()]


def _builds(setting: Setting) -> bool:
    """Whether an unread key may describe the model."""
    return (
        "." not in setting.name
        and setting.name not in SAME
        and not setting.name.startswith(_IGNORED_PREFIXES)
    )


def _job(values: Values, files: Mapping[str, str]) -> Job:
    """The nodes and accelerators, from the config or the hostfile."""
    nodes = values.integer("num_nodes", default=0, least=0) or None
    total = values.integer("global_num_gpus", default=0, least=0) or None
    if total:
        return Job(nodes, total // nodes if nodes and total % nodes == 0 else None, total)
    lines = re.findall(r"^[^\s#]+[ \t]+slots=(\d{1,5})", files.get("hostfile", ""), re.MULTILINE)
    slots = {int(one) for one in lines}
    each = values.integer("num_gpus", default=0, least=0)  # of a node, for its launcher
    if len(slots) != 1:
        if not each and (asked := _asked(files, nodes)) is not None:
            return asked
        hosts = nodes or 1
        return Job(hosts, each, hosts * each) if each else Job(nodes, None, None)
    each = each or slots.pop()
    return Job(len(lines), each, len(lines) * each)


def _say_method(values: Values) -> None:
    """Says what a training on preferences or rewards has beside that of the next token."""
    method = (values.text("train_impl") or "normal").lower()
    if method != "normal":
        values.assume(
            f"train_impl {method}: costed as training on the next token, without pairs of samples "
            "and without a reference model"
        )


def _asked(files: Mapping[str, str], nodes: int | None) -> Job | None:
    """What the job of a script that starts it asks of Slurm; None where it asks for no GPUs.

    nodes: as the configuration states them.
    """
    call = training_calls.training_call_if_any(
        files, (_STARTER,), lambda one: one.program.text.endswith(_STARTER), "GPT-NeoX"
    )
    if call is None:
        return None
    slurm = slurm_variables((*call.launch.slurm, *call.launch.before))
    each = training_calls.visible(call.launch) or training_calls.of_node(slurm)
    count = nodes or slurm.get("SLURM_NNODES", 1)
    return Job(count, each, count * each) if each else None


def _model(values: Values, files: Mapping[str, str]) -> ModelSpec:
    heads = values.integer("num_attention_heads")
    hidden, seq = values.integer("hidden_size"), values.integer("seq_length", default=0, least=0)
    # Before release 3 LLaMAParallelMLP had a gate of its own beside the activation.
    llama = values.text("mlp_type") == "llama"
    gated = llama or (values.text("activation") or "gelu") in GATED
    position = _position(values)
    norm = NORMS[values.choice("norm", choices=NORMS, default="layernorm")]
    parallel = values.boolean("gpt_j_residual")
    rows = values.integer("max_position_embeddings", default=seq, least=0)
    keeps = position == "learned" or rows > seq
    experts = values.integer("moe_num_experts", default=1)
    fields: dict[str, Any] = {
        "num_layers": values.integer("num_layers", most=10_000),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_query_groups": values.integer("num_kv_heads", default=heads),
        "head_dim": max(hidden // heads, 1),
        "ffn_hidden_size": _width(values, hidden, gated, llama),
        "gated_mlp": gated,
        "vocab_size": _vocabulary(values, files, hidden),
        "tied_embeddings": not values.boolean("no_weight_tying"),
        "norm": norm,
        "norm_bias": norm == "layernorm" and values.boolean("use_bias_in_norms", default=True),
        "qkv_bias": values.boolean("use_bias_in_attn_linear", default=True),
        "attention_output_bias": values.boolean("use_bias_in_attn_linear", default=True),
        "mlp_bias": values.boolean("use_bias_in_mlp", default=True) and experts < 2 and not llama,
        "qk_norm": "head" if values.boolean("use_qk_layernorm") else "none",
        "parallel_residual": parallel,
        "norms_per_layer": 1 if parallel and values.boolean("gpt_j_tied") else 2,
        "position": position,
        "max_position_embeddings": rows if keeps and rows else None,
        "hidden_dropout": _share(values, "hidden_dropout"),
        "attention_dropout": _share(values, "attention_dropout"),
        "moe": _experts(values, experts, hidden) if experts > 1 else None,
        "numerics": _numerics(values, norm),
    }
    if values.has("sliding_window_width"):
        fields["sliding_window"] = values.integer("sliding_window_width") + 1
    return ModelSpec(**fields)


def _numerics(values: Values, norm: str) -> dict[str, float]:
    keys = {**NUMERICS, "norm_epsilon": EPSILONS[norm]}
    return {field: values.number(key) for field, key in keys.items() if values.has(key)}


def _position(values: Values) -> str:
    ours = {theirs: name for name, theirs in POSITIONS.items()} | OTHER_POSITIONS
    text = values.text("pos_emb") or ""
    if text.startswith("rotary_"):  # scaled, by forks: angles cost the same
        values.assume(f"pos_emb: {text} is costed as rotary")
        return ours["rotary"]
    said = values.choice("pos_emb", choices=ours, default="learned")
    if said in OTHER_POSITIONS:
        values.assume(f"pos_emb: {said} is costed as {ours[said]}")
    return ours[said]


def _share(values: Values, key: str) -> float:
    text = values.text(key) or "0"
    return 0.0 if text in ("0", "0.0") else values.number(key)


def _width(values: Values, hidden: int, gated: bool, llama: bool) -> int:
    """The MLP's width, as GPT-NeoX derives it from the config; llama: as its older MLP did."""
    if llama:
        return values.integer("intermediate_size", default=_two_thirds(hidden))
    said = values.integer("intermediate_size", default=4 * hidden)
    multiple = values.integer("mlp_multiple_of", default=1)
    width = said * 2 // 3 // 2 if gated else said
    return -(-width // multiple) * multiple


def _two_thirds(hidden: int) -> int:
    """8/3 of hidden_size, in steps of 256: two thirds of an MLP without a gate."""
    return 256 * -(-int(2 * hidden * 4 / 3) // 256)


def _experts(values: Values, count: int, hidden: int) -> dict[str, Any]:
    """Megablocks' experts."""
    default = _two_thirds(hidden)
    return {
        "num_experts": count,
        "top_k": values.integer("moe_top_k", default=1),
        "expert_ffn_hidden_size": values.integer("intermediate_size", default=default),
        "layer_frequency": values.integer("moe_expert_interval", default=1),
    }


def _vocabulary(values: Values, files: Mapping[str, str], hidden: int) -> int:
    """The vocabulary as stated, or of the mock tokenizer, or of one known by its file or kind."""
    values.has("make_vocab_size_divisible_by")
    if values.has("padded_vocab_size", "vocab_size"):
        return values.integer("padded_vocab_size", "vocab_size")
    mock = re.search(r"mock_data\.py\S* \S+ (\d{1,8}) ", files.get("launch.sh", ""))
    if mock:
        return int(mock[1])
    kind, file = values.text("tokenizer_type"), values.text("vocab_file") or ""
    usual = kind or "GPT2BPETokenizer"
    found = tokenizers.tokenizer_tokens(file)
    if found is not None:
        values.assume(f"the tokenizer of {file} has {found} tokens")
        return found
    if usual in tokenizers.KINDS:
        found = tokenizers.KINDS[usual]
        values.assume(f"the vocabulary of {usual} is taken to have {found} tokens")
        return found
    values.assume(
        f"the files have no vocabulary size: {ANY_VOCABULARY} assumed; "
        f"{tokenizers.weights_of_more(hidden)}; --set vocab_size=N"
    )
    return ANY_VOCABULARY
