"""Reads YAML of trainers that build Megatron-Core's models from sections: FlagScale and NeMo 1.

FlagScale's leaves are Megatron-LM's options (flagscale/runner/utils.py, flatten_dict_to_args, of
release 0.8).  NeMo 1 and AWS's NeuronX Distributed Training have Megatron-Core's attributes, a few
by other names (megatron_gpt_config.yaml of NeMo 1.23).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from cost_models.catalog.names import UnknownName
from planner.frameworks import training_calls, yaml_files
from planner.frameworks.bash import Argument, ProgramCall
from planner.frameworks.launch_files import GivenValues
from planner.frameworks.lora_settings import adapter_fields
from planner.frameworks.megatron.printed_arguments import TranslatedLaunch, words_of
from planner.frameworks.megatron.yaml_config import DOTTED, MODEL_ARGS
from planner.frameworks.python.hydra import in_groups
from planner.frameworks.read_results import Setting, Unreadable
from planner.frameworks.training_calls import DECODERS_ONLY, TrainingCall, World
from planner.frameworks.yaml_files import YamlFile
from planner.huggingface.named_models import find

YAML = (".yaml", ".yml")
FLAGSCALE, NEMO = "FlagScale", "NeMo 1"
_OF_FLAGSCALE = (
    re.compile(r"^system:[ \t]*$", re.M),
    re.compile(r"^model:[ \t]*$", re.M),
    re.compile(r"^ +hidden_size:", re.M),
)
_DOTTED = (re.compile(r"^MODEL_ARGS:[ \t]*$", re.M), DOTTED)
_OF_NEMO = (
    re.compile(r"^trainer:[ \t]*$", re.M),
    re.compile(r"^model:[ \t]*$", re.M),
    re.compile(r"^  tensor_model_parallel_size:|^distributed_strategy:", re.M),
)
# Trainers whose steps differ from NeMo's: sections of trainer.
_ALIGNER = re.compile(r"^  (ppo|reinforce|rs|grpo|kd|spin|draftp?|rm|dpo|sft):", re.M)
# Attribute of NeMo 1 -> of Megatron-LM's parser.
_NAMES = {
    "encoder_seq_length": "seq_length",
    "data.train_ds.max_seq_length": "seq_length",
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "layernorm_epsilon": "norm_epsilon",
    "rotary_percentage": "rotary_percent",
    "num_moe_experts": "num_experts",
    "num_kv_heads": "num_query_groups",
    "override_vocab_size": "vocab_size",
    "ub_tp_comm_overlap": "tp_comm_overlap",
}
_SAMES = """
micro_batch_size global_batch_size tensor_model_parallel_size pipeline_model_parallel_size
context_parallel_size expert_model_parallel_size num_layers hidden_size ffn_hidden_size
num_attention_heads num_query_groups kv_channels max_position_embeddings position_embedding_type
rotary_base sequence_parallel moe_router_topk moe_grouped_gemm moe_shared_expert_intermediate_size
moe_token_dispatcher_type make_vocab_size_divisible_by vocab_size overlap_p2p_comm qk_layernorm
window_size moe_ffn_hidden_size
"""
_SAME = frozenset(_SAMES.split())
_NEEDED = ("num_layers", "hidden_size", "num_attention_heads")
_SCHEME = "peft.peft_scheme"
_GATED = {"swiglu": True, "fast-swiglu": True, "gelu": False, "squared-relu": False}
_DISTRIBUTED = ("distributed_fused_adam", "mcore_distributed_optim", "adamw_fp32OptState")
# NeMo's formula for the width of an MLP, which is the parser's default.
_FOUR_TIMES = re.compile(r"\$\{multiply: *4, *\$\{\.hidden_size\}\}")


# Its programs, and what their configurations say where a call overrides it not: those of
# megatron_gpt_config.yaml and megatron_gpt_finetuning_config.yaml of NeMo 1.23.
_PROGRAM = re.compile(r"(^|/)megatron_\w*(pretrain|finetun|continue_train|sft|tuning)\w*\.py$")
_TUNES = re.compile(r"finetun|sft|tuning")
_USUAL = {
    "trainer.devices": "1", "trainer.num_nodes": "1", "model.tensor_model_parallel_size": "1",
    "model.pipeline_model_parallel_size": "1", "model.micro_batch_size": "4",
}  # fmt: skip
_PRETRAINED = {
    "model.global_batch_size": "8", "model.encoder_seq_length": "512", "model.num_layers": "12",
    "model.hidden_size": "768", "model.ffn_hidden_size": "3072", "model.num_attention_heads": "12",
    "model.activation": "gelu", "model.tokenizer.library": "megatron",
    "model.tokenizer.type": "GPT2BPETokenizer",
}  # fmt: skip
_TUNED = {
    "model.global_batch_size": "128", "model.data.train_ds.max_seq_length": "2048",
    "model.peft.lora_tuning.adapter_dim": "32",
    "model.peft.lora_tuning.target_modules": "[attention_qkv]",
}  # fmt: skip
# Modules with adapters -> Megatron-Core's names.
_MODULES = {
    "attention_qkv": ("linear_qkv",), "attention_dense": ("linear_proj",),
    "mlp_fc1": ("linear_fc1",), "mlp_fc2": ("linear_fc2",),
    "attention": ("linear_qkv", "linear_proj"), "mlp": ("linear_fc1", "linear_fc2"),
    "all": ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
}  # fmt: skip


def call_of(files: Mapping[str, str]) -> TrainingCall | None:
    """The call of one of NeMo 1's programs with overrides; None if no script has one."""
    hints = ("megatron_",)
    return training_calls.training_call_if_any(files, hints, _starts, NEMO)


def _starts(launch: ProgramCall) -> bool:
    said = any(
        word.text.lstrip("+").startswith(("model.", "trainer.")) for word in launch.arguments
    )
    return said and _PROGRAM.search(launch.program.text) is not None


def file_of(found: TrainingCall, files: Mapping[str, str]) -> YamlFile:
    """The configuration that a call names, or an empty one in its place."""
    words = [word.text for word in found.launch.arguments]
    for name in in_groups(words):
        last = name.rsplit("/", 1)[-1]
        if last in files:
            return yaml_files.read(files[last], last)
    return YamlFile(found.script, {}, {})


def overrides(found: TrainingCall, beside: YamlFile, notes: list[str]) -> Iterator[Setting]:
    """What a call says, after the values that its program's own configuration has."""
    program = found.launch.program
    if not beside.values:
        more = _TUNED if _TUNES.search(program.text) else _PRETRAINED
        notes.append("what the call leaves out is as in NeMo 1.23's program")
        for name, text in (_USUAL | more).items():
            yield Setting(name=name, value=text, file=program.file, line=program.line)
    for word in found.launch.arguments:
        key, equals, text = word.text.lstrip("+").partition("=")
        if equals and not key.startswith("-"):
            held = text if word.known or "${" in text else f"${{{text.strip('$')}}}"
            yield Setting(name=key, value=held.strip("\"'"), file=word.file, line=word.line)


def trainer_of(files: Mapping[str, str]) -> tuple[str, str] | None:
    """The name of the YAML of one of these trainers, and the trainer; None if there is none."""
    if (found := call_of(files)) is not None:
        return found.script, NEMO
    for name, text in files.items():
        if not name.endswith(YAML) or _ALIGNER.search(text):
            continue
        for title, marks in ((FLAGSCALE, _OF_FLAGSCALE), (NEMO, _OF_NEMO), (NEMO, _DOTTED)):
            if all(mark.search(text) for mark in marks):
                return name, title
    return None


def translated(
    file: YamlFile,
    title: str,
    given: GivenValues,
    known: Mapping[str, Any],
    size: int | None,
    found: TrainingCall | None = None,
) -> TranslatedLaunch:
    """Its settings as Megatron-LM's options, with those of a call; raises Unreadable."""
    notes = file.notes()
    called = () if found is None else tuple(overrides(found, file, notes))
    said = (*file.settings(), *called, *given.settings())
    settings = {one.name.removeprefix(f"{MODEL_ARGS}.").lstrip("+"): one for one in said}
    adapters: Mapping[str, Any] = {}
    if title == FLAGSCALE:
        words, world = tuple(_flags(settings, known, notes)), World(None, None, size)
    else:
        given, adapters = _restored(settings, given, notes)
        words, world = _of_nemo(file, settings, known, given, notes)
    extra = [one for one in given.settings() if one.name.startswith("--")]
    words += tuple(
        Argument(text, one.file, 0) for one in extra for text in (one.name, one.value)
        if isinstance(text, str) and text
    )  # fmt: skip
    program = Argument("pretrain_gpt.py", file.name, 1)
    launch = ProgramCall(program=program, arguments=words)
    return TranslatedLaunch(launch, given.model, world, tuple(notes), (), adapters)


def _restored(
    settings: Mapping[str, Setting], given: GivenValues, notes: list[str]
) -> tuple[GivenValues, Mapping[str, Any]]:
    """The values with the model of the .nemo file that training starts from, and LoRA's fields."""
    source, scheme = (settings.get(f"model.{one}") for one in ("restore_from_path", _SCHEME))
    if given.model is None and source is not None and "model.num_layers" not in settings:
        last = str(source.value).rsplit("/", 1)[-1].removesuffix(".nemo")
        with suppress(UnknownName):
            given = replace(given, model=find(last, notes))
    if scheme is None or str(scheme.value) != "lora" or given.model is None:
        return given, {}
    rank, dropout, modules = (
        settings.get(f"model.peft.lora_tuning.{one}")
        for one in ("adapter_dim", "adapter_dropout", "target_modules")
    )
    names = re.findall(r"\w+", str(modules.value)) if modules is not None else ["attention_qkv"]
    said = [name for one in names for name in _MODULES.get(one, (one,))]
    place = modules or scheme
    targets = place.model_copy(update={"value": " ".join(said)})
    share = float(str(dropout.value)) if dropout is not None else 0.0
    return given, adapter_fields(given.model, _count(rank) or 32, targets, share)


def _flags(
    settings: Mapping[str, Setting], known: Mapping[str, Any], notes: list[str]
) -> Iterator[Argument]:
    """Each leaf of FlagScale's sections as the option of its name."""
    for path, one in settings.items():
        section, _, rest = path.partition(".")
        text = str(one.value)
        if path == "system.use_dualpipev" and text.lower() == "true":
            raise one.unreadable(f"{path}: FlagScale's schedule DualPipeV is not read")
        if section not in ("system", "model", "data") or _is_unset(one):
            continue
        name = "--" + rest.rpartition(".")[2].replace("_", "-")
        if name == "--tokenizer-type" and text not in known[name]["choices"]:
            notes.append(f"{path} {text} is one of FlagScale's own tokenizers")
            continue
        yield Argument(name, one.file, one.line)
        yield from _values(one, known.get(name))


def _is_unset(setting: Setting) -> bool:
    """Whether it makes no option; the runner's own settings come from the experiment."""
    text = str(setting.value).lower()
    return text in ("null", "none", "", "false") or text.startswith("${experiment.")


def _values(setting: Setting, row: Mapping[str, Any] | None) -> Iterator[Argument]:
    """The values of an option; none of a switch."""
    text = str(setting.value)
    if text.lower() == "true" and (row is None or row["kind"] == "switch"):
        return
    listed = row is not None and row.get("nargs") not in (None, 1, "?")
    for part in re.findall(r"[^\s,\[\]]+", text) if listed else [text]:
        yield Argument(part, setting.file, setting.line, "${" not in part)


def _of_nemo(
    file: YamlFile,
    settings: Mapping[str, Setting],
    known: Mapping[str, Any],
    given: GivenValues,
    notes: list[str],
) -> tuple[tuple[Argument, ...], World]:
    """The options of a NeMo 1 config, and its processes."""
    model = {
        path.partition(".")[2]: one
        for path, one in settings.items()
        if path.startswith(("model.", "distributed_strategy.", "data."))
        and one.value not in ("null", "None", "", None)
    }
    _refuse(file, model, given)
    said = dict(_by_name(model))
    for name, text in _by_value(model, said, notes).items():
        said[name] = Argument(text, file.name, 1)
    recomputed = said.get("recompute_granularity")
    if recomputed is None or recomputed.text != "full":
        said = {k: v for k, v in said.items() if not k.startswith(("recompute_m", "recompute_n"))}
    nodes, each = (_count(settings.get(f"trainer.{key}")) for key in ("num_nodes", "devices"))
    world = World(nodes, each, nodes * each if nodes and each else None)
    return tuple(words_of(said, known)), world


def _by_name(model: Mapping[str, Setting]) -> Iterator[tuple[str, Argument]]:
    """Attributes of the parser whose values are NeMo's."""
    for name, one in model.items():
        text = str(one.value)
        key = _NAMES.get(name, name if name in _SAME else "")
        if key == "rotary_base":  # an integer in the parser
            text = re.sub(r"\.0*$", "", text)
        if key and not _FOUR_TIMES.search(text):
            yield key, Argument(text, one.file, one.line, "${" not in text)


def _count(setting: Setting | None) -> int | None:
    text = str(setting.value) if setting is not None else ""
    return int(text) if re.fullmatch(r"[1-9]\d{0,6}", text) else None


def _by_value(
    model: Mapping[str, Setting], said: Mapping[str, Argument], notes: list[str]
) -> dict[str, str]:
    """Attributes whose names or values NeMo has otherwise."""

    def text(name: str, default: str = "") -> str:
        return str(model[name].value) if name in model else default

    def on(name: str, default: str = "false") -> bool:
        return text(name, default).lower() == "true"

    activation = text("activation", "gelu")
    if activation not in _GATED:
        raise model["activation"].unreadable(
            f"activation {activation}: must be one of {', '.join(_GATED)}"
        )
    found = {
        "swiglu": str(_GATED[activation]).lower(),
        "squared_relu": str(activation == "squared-relu").lower(),
        "add_bias_linear": text("bias", "true").lower(),
        "add_qkv_bias": text("qkv_bias", "false").lower(),
        "untie_embeddings_and_output_weights": str(
            not on("share_embeddings_and_output_weights", "true")
        ).lower(),
        "normalization": "RMSNorm" if "rms" in text("normalization") else "LayerNorm",
        "use_distributed_optimizer": str(
            text("optim.name") in _DISTRIBUTED or on("zero1")
        ).lower(),
        "group_query_attention": str("num_query_groups" in said).lower(),
        "overlap_grad_reduce": text("optim.overlap_grad_sync", "false").lower(),
        "overlap_param_gather": text("optim.overlap_param_sync", "false").lower(),
        "cross_entropy_loss_fusion": text("cross_entropy_loss_fusion", "false").lower(),
        "bf16": "true",
    }  # fmt: skip
    if (virtual := text("virtual_pipeline_model_parallel_size", "1")) not in ("1", "null"):
        found["num_virtual_stages_per_pipeline_rank"] = virtual
    if not any(on(name, "true") for name in ("transformer_engine", "use_flash_attention")):
        found["transformer_impl"] = "local"
    if on("fp8"):
        found["fp8_format"] = "hybrid" if on("fp8_hybrid") else "e4m3"
    kind = text("tokenizer.type") or text("tokenizer.model")
    if "vocab_size" not in said and text("tokenizer.library") in ("megatron", "huggingface"):
        found["tokenizer_model"] = kind
        if kind == "GPT2BPETokenizer":
            found["tokenizer_type"] = kind
    notes.append("mixed precision of 16 bits is assumed to be bf16 where trainer.precision has 16")
    return found


def _refuse_adapters(model: Mapping[str, Setting], given: GivenValues) -> None:
    scheme = model.get(_SCHEME)
    if scheme is None or scheme.value == "none":
        return
    if scheme.value != "lora":
        text = f"{scheme.name} {scheme.value}: of {NEMO}'s adapters only LoRA is read"
        raise scheme.unreadable(text)
    if given.model is None and _NEEDED[0] in model:
        raise scheme.unreadable(f"{NEMO}'s adapters need the model by its name: give it (--model)")


def _refuse(file: YamlFile, model: Mapping[str, Setting], given: GivenValues) -> None:
    """Raises Unreadable for what is no decoder, for adapters, and where the model is elsewhere."""
    parts = [
        name for name in model if re.match(r"(encoder|decoder|vision|text|unet)\.|img_h", name)
    ]
    if parts:
        one = model[parts[0]]
        raise one.unreadable(f"{one.name}: an encoder, or a part beside it: {DECODERS_ONLY}")
    _refuse_adapters(model, given)
    missing = [name for name in _NEEDED if name not in model]
    if missing and given.model is None:
        places = (model.get(key) for key in ("model_config", "restore_from_path"))
        elsewhere = next((one for one in places if one is not None), None)
        where = f": the rest is in {elsewhere.value}" if elsewhere is not None else ""
        raise Unreadable(
            f"{NEMO}'s model leaves out {', '.join(missing)}{where}; give it by --model NAME",
            file.name,
            elsewhere.line if elsewhere is not None else 0,
        )
