"""Configurations of models as a table: how large each is by transformers, on the meta device.

`python -m tests.tools.configurations build` builds every model again and writes the table;
`python -m tests.tools.configurations refused` writes the list of those that no reader here reads;
`python -m tests.tools.configurations looked` reads every one from its modules and writes how well.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from cost_models.parameters import total_parameters
from planner.huggingface import ImportedModel, ModelImportError, model_from_config

Kind = Literal["decoder", "vision-language", "encoder-decoder"]

FOLDER = Path(__file__).parents[1] / "fixtures" / "configurations"
PUBLISHED = FOLDER / "published.jsonl"
TABLE = FOLDER / "parameters.jsonl"
REFUSED = FOLDER / "refused.json"
LOOKED = FOLDER / "looked.jsonl"
DEFAULT = " (default)"  # the end of an id, after a model_type
SECONDS = 120  # for one model

# In the mappings of transformers, and no language model that is trained to predict a next token.
ENCODERS = """
bert bert-generation big_bird camembert data2vec-text electra encoder-decoder ernie megatron-bert
rembert roberta roberta-prelayernorm roc_bert roformer vision-encoder-decoder xlm xlm-roberta
xlm-roberta-xl xmod
"""
SPEECH = """
audioflamingo3 glmasr granite_speech granite_speech_plus moshi moss_transcribe_diarize musicflamingo
musicgen musicgen_melody nemo_speechlm qwen2_audio qwen3_asr seamless_m4t seamless_m4t_v2
vibevoice_asr voxtral voxtral_realtime whisper
"""
DRAFTERS = "gemma4_assistant gemma4_unified_assistant"  # their layers read another model's cache
LEFT_OUT = frozenset(f"{ENCODERS} {SPEECH} {DRAFTERS}".split())
# What the defaults of a class leave out although its model cannot be built without.
STATED: dict[str, dict[str, Any]] = {
    "aya_vision": {"vision_config": {"model_type": "siglip_vision_model"}},
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "dbrx": {"attn_config": {"rope_theta": 500_000.0, "kv_n_heads": 8, "clip_qkv": 8}},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "emu3": {"vocabulary_map": {"<image>": 5}},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "hunyuan_vl": {"text_config": {"head_dim": 128}},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "reformer": {"is_decoder": True},
}
# Parameters that transformers allocates and no token uses: inputs of 256 experts that compute
# nothing, in 28 layers.  The published count has none of them.
UNUSED = {"longcat_flash (default)": 28 * 256 * 2 * 6144 * 2048}
LAYER_LISTS = ("layers", "h", "block", "blocks", "layer")


@dataclass(frozen=True)
class Row:
    """One configuration and the parameters of its model; a tied table counts once.

    encoder: of what is read before the decoder (text, images or sound), projectors included;
    other: of the rest, such as final norms.  layers and encoder are null where the decoder's layers
    are not one list.  reason: why transformers builds no model.
    """

    id: str
    model_type: str
    source: str
    architecture: str | None = None
    kind: Kind | None = None
    parameters: int | None = None
    layers: int | None = None
    embedding: int | None = None
    head: int | None = None
    encoder: int | None = None
    other: int | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Look:
    """What was read from the modules of one configuration's model.

    exact: modules of a layer that a block describes; approximate: whose products are counted;
    left: the share of all parameters that nothing describes, in percent.
    """

    id: str
    exact: tuple[str, ...] = ()
    approximate: tuple[str, ...] = ()
    left: float = 0.0
    refused: str | None = None


@cache
def published() -> dict[str, dict[str, Any]]:
    """Published configurations by name, with where they were found."""
    return {row["id"]: row for row in _rows(PUBLISHED)}


@cache
def table() -> dict[str, Row]:
    return {row["id"]: Row(**row) for row in _rows(TABLE)}


@cache
def looks() -> dict[str, Look]:
    """How well every model was read from its modules when the table was written."""
    rows = (json.loads(line, object_hook=_tuples) for line in LOOKED.read_text().splitlines())
    return {row["id"]: Look(**row) for row in rows}


def _tuples(row: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in row.items()}


def refused() -> dict[str, str]:
    """Why the planner refuses a configuration today, by its id."""
    listed: dict[str, str] = json.loads(REFUSED.read_text("utf-8"))
    return listed


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in path.read_text("utf-8").splitlines())


def config_of(row: Row) -> dict[str, Any]:
    """The configuration: as published, or every default of its class."""
    if row.id in published():
        return dict(published()[row.id]["config"])
    from transformers import CONFIG_MAPPING

    whole = CONFIG_MAPPING[row.model_type].from_dict(STATED.get(row.model_type, {}))
    return {**whole.to_dict(), "model_type": row.model_type}


def planned(config: Mapping[str, Any]) -> ImportedModel | str:
    """The model that the planner reads, or why it reads none."""
    try:
        return model_from_config(config)
    except ModelImportError as error:
        first = error.problems[0]
        return f"{first.pointer}: {first.message.split(' (found')[0]}"


def expected_parameters(row: Row, imported: ImportedModel) -> int:
    """What transformers counts of what the planner plans."""
    assert row.parameters is not None
    assert row.encoder is not None
    alone = any(note.startswith("vision_config: left out") for note in imported.left_out)
    whole = row.parameters - UNUSED.get(row.id, 0)
    return whole - row.encoder if alone else whole


def planned_parameters(imported: ImportedModel) -> int:
    """Parameters without multi-token prediction, which transformers does not build."""
    return total_parameters(imported.model.model_copy(update={"mtp_num_layers": 0}))


def auto_class(model_type: str) -> tuple[Kind, Any] | None:
    """The kind of model and the class of transformers that builds it."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    if model_type in LEFT_OUT:
        return None
    if model_type in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        return "vision-language", transformers.AutoModelForImageTextToText
    if model_type in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        return "encoder-decoder", transformers.AutoModelForSeq2SeqLM
    if model_type in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return "decoder", transformers.AutoModelForCausalLM
    return None


def defaults() -> list[str]:
    """The ids of the default configurations."""
    from transformers.models.auto import modeling_auto as auto

    names = {
        *auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        *auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        *auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    }
    return sorted(name + DEFAULT for name in names if auto_class(name))


def build(id: str, model_type: str, source: str, config: Mapping[str, Any]) -> Row:
    """One model as it is built on the meta device."""
    found = auto_class(model_type)
    if found is None:
        reason = f"transformers has no model_type {model_type} of its own"
        return Row(id, model_type, source, _architecture(config), reason=reason)
    kind, auto = found
    rest = {key: value for key, value in config.items() if key not in _STORAGE}
    try:
        with _time_limit(SECONDS):
            model = _on_meta(model_type, auto, rest)
            counts = _counts(model, kind)
    except Exception as error:  # whatever transformers raises is the reason
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return Row(id, model_type, source, _architecture(config), kind, reason=text)
    total = sum(count or 0 for count in counts.values())
    return Row(id, model_type, source, type(model).__name__, kind, total, **counts)


def _on_meta(model_type: str, auto: Any, config: Mapping[str, Any]) -> Any:
    import torch
    from transformers import CONFIG_MAPPING

    with torch.device("meta"):
        model = auto.from_config(CONFIG_MAPPING[model_type].from_dict(dict(config)))
        model.tie_weights()
    return model


def look(row: Row) -> Look:
    """One model, read from its modules; its parameters are those of the table."""
    from planner.huggingface.module_inspection import inspect_model

    found = auto_class(row.model_type)
    assert found is not None
    config = {key: value for key, value in config_of(row).items() if key not in _STORAGE}
    try:
        with _time_limit(SECONDS):
            model = _on_meta(row.model_type, found[1], config)
            read = inspect_model(model, model.config, "looked")
    except ValueError as error:
        return Look(row.id, refused=" ".join(str(error).split())[:200])
    assert total_parameters(read.model) == row.parameters, row.id
    left = round(100.0 * read.model.other_parameters / total_parameters(read.model), 2)
    return Look(row.id, read.exact, read.approximate, left)


_STORAGE = {"model_type", "quantization_config"}  # how weights are stored is no part of a model


def _architecture(config: Mapping[str, Any]) -> str | None:
    stated = config.get("architectures")
    return stated[0] if stated else None


def _counts(model: Any, kind: Kind) -> dict[str, int | None]:
    """Parameters by part, each counted once, in the part that names it first."""
    decoder, layers = _decoder(model, kind)
    embedding = None
    with suppress(NotImplementedError):  # a class that says nothing of its embeddings
        embedding = model.get_input_embeddings()
    parts = {
        "embedding": embedding,
        "head": model.get_output_embeddings(),
        "layers": layers,
        "other": decoder,
        "encoder": model,
    }
    seen: set[int] = set()
    counts: dict[str, int | None] = {}
    for name, module in parts.items():
        own = [] if module is None else list(module.parameters())
        new = {id(parameter): parameter.numel() for parameter in own if id(parameter) not in seen}
        seen |= new.keys()
        counts[name] = sum(new.values())
    if layers is None:
        counts |= {"layers": None, "encoder": None}
    return counts


def _decoder(model: Any, kind: Kind) -> tuple[Any, Any]:
    """The decoder and its list of layers; the whole model where no part is the decoder."""
    inner = model.get_decoder() if hasattr(model, "get_decoder") else model
    while inner is not None:
        lists = [getattr(inner, name, None) for name in LAYER_LISTS]
        if found := next((one for one in lists if one is not None), None):
            return (model if kind == "decoder" else inner), found
        names = ("language_model", "text_model", "model", "decoder", "transformer", "backbone")
        inner = next((found for name in names if (found := getattr(inner, name, None))), None)
    if kind != "decoder":
        return model, None
    from torch.nn import ModuleList

    lists = [module for module in model.modules() if isinstance(module, ModuleList)]
    return model, max(lists, key=lambda one: sum(p.numel() for p in one.parameters()))


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"not built in {seconds} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def built_row(id: str) -> Row:
    """The row of one configuration as transformers counts it now."""
    if id in published():
        row = published()[id]
        return build(id, row["config"]["model_type"], row["source"], row["config"])
    import transformers

    model_type = id.removesuffix(DEFAULT)
    stated = STATED.get(model_type, {})
    source = f"transformers {transformers.__version__} default"
    return build(id, model_type, source + (f", with {', '.join(stated)}" if stated else ""), stated)


def build_table() -> None:
    with TABLE.open("w", encoding="utf-8") as file:
        for id in [*published(), *defaults()]:
            row = built_row(id)
            kept = {key: value for key, value in asdict(row).items() if value is not None}
            print(json.dumps(kept), file=file, flush=True)
            print(row.id, row.parameters, row.reason or "")


def write_refused() -> None:
    answers = {row.id: planned(config_of(row)) for row in table().values()}
    listed = {id: why for id, why in sorted(answers.items()) if isinstance(why, str)}
    REFUSED.write_text(json.dumps(listed, indent=1) + "\n", "utf-8")
    print(f"{len(answers) - len(listed)} planned, {len(listed)} refused")


def write_looked() -> None:
    with LOOKED.open("w", encoding="utf-8") as file:
        for row in table().values():
            if row.parameters is not None:
                read = look(row)
                print(json.dumps(asdict(read)), file=file, flush=True)
                print(read)


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    {"build": build_table, "refused": write_refused, "looked": write_looked}[sys.argv[1]]()
