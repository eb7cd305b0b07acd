"""Launches of ms-swift (`megatron sft`, `pt`, `rlhf`), translated to Megatron-LM's options.

Its options are Megatron-LM's attributes; defaults are those of MegatronArguments of August 2026
(3602360).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cost_models.package_files import table
from cost_models.spec import ModelSpec
from planner.frameworks import architecture
from planner.frameworks.arguments import option_like
from planner.frameworks.bash import Argument, ProgramCall
from planner.frameworks.launch_files import SET, GivenValues
from planner.frameworks.lora_settings import adapter_fields
from planner.frameworks.megatron import attribute_names, printed_arguments
from planner.frameworks.megatron.printed_arguments import TranslatedLaunch
from planner.frameworks.post_training import preset, with_prediction
from planner.frameworks.read_results import Setting, Unreadable
from planner.frameworks.training_calls import World

TITLE = "ms-swift"
TASKS = ("sft", "pt", "rlhf")
MARK = re.compile(r"\bmegatron[\s\\]+(sft|pt|rlhf)\b|swift/cli/_megatron/\w+\.py")
FILE = re.compile(r"swift/cli/_megatron/(sft|pt|rlhf)\.py$")
# Kinds of `megatron rlhf`; a sample of a paired one is two sequences in one pass.
PAIRED = ("dpo",)
ALIGNED = (*PAIRED, "kto", "grpo")
APART = "only the policy's training is costed, without reference, reward, teacher and generation"
_TABLE = table("planner.frameworks.megatron", "ms_swift.json")
DEFAULTS: dict[str, str] = _TABLE["defaults"]
EXPERTS: dict[str, str] = _TABLE["defaults_of_experts"]
# Options that do not affect a step's time or memory.
IDLE = re.compile(
    r"dataset|^(dataloader|save|load|logging|log|eval|output|system|use_hf|hub|lr|min_lr|finetune|"
    r"no_|num_train|train_|model_(name|author|type)|template|agent|loss_scale|report|wandb|seed|"
    r"adam_|weight_decay|clip|async|mcore_|add_version|strict|response|enable_thinking|stream)"
)
TUNED: dict[str, list[str]] = _TABLE["tuned"]


def launches(launch: ProgramCall) -> bool:
    """Whether a call is ms-swift's training on Megatron-Core."""
    before = [word.text.rsplit("/", 1)[-1] for word in launch.before]
    return (before[-1:] == ["megatron"] and launch.program.text in TASKS) or _is_file(launch)


def _is_file(launch: ProgramCall) -> bool:
    """Whether the program is the file that its command starts."""
    return bool(FILE.search(launch.program.text))


def translated(
    launch: ProgramCall, given: GivenValues, known: Mapping[str, Any]
) -> TranslatedLaunch:
    """The call translated to Megatron-LM's options.  Raises Unreadable."""
    said = dict(_values_by_option(launch, given))
    kinds = set(_tuned(said))
    notes: list[str] = []
    pairs = _aligned(said, launch, notes)
    model = given.model or _model(said, launch, notes)
    training = _adapted(said, model) if "lora" in kinds else {}
    training |= {"loss": "dpo"} if pairs > 1 else {}
    length = said.pop("max_length", None)
    program = launch.program
    if length is None:
        raise program.unreadable("--max_length is missing: --set max_length=...")
    packing = said.pop("packing", None)
    if packing is None or packing.text.lower() != "true":
        notes.append(f"every sample is assumed to be as long as --max_length, {length.text} tokens")
    said.pop("model", None)
    _freeze(said, notes)
    usual = DEFAULTS | (EXPERTS if model.moe is not None else {})
    words = {name: Argument(text, program.file, program.line) for name, text in usual.items()}
    words["seq_length"] = length
    for name in ("micro_batch_size", "global_batch_size"):
        one = said.pop(name, words[name])
        if one.text.isdecimal():
            one = Argument(str(pairs * int(one.text)), one.file, one.line, one.known)
        words[name] = one
    left = []
    for name, word in said.items():
        ours = attribute_names.of_core(name)
        if ours in attribute_names.options():
            words[ours] = word
        elif not IDLE.search(name):
            left.append(_setting(name, word))
    architecture.refuse(left)
    call = replace(launch, arguments=tuple(printed_arguments.words_of(words, known)))
    return TranslatedLaunch(call, model, _world(launch), tuple(notes), tuple(left), training)


def _freeze(said: dict[str, Argument], notes: list[str]) -> None:
    """Takes out what freezes parts around the language model, or leaves that as it is."""
    frozen = [said.pop(name) for name in ("freeze_vit", "freeze_aligner") if name in said]
    if frozen:
        notes.append("only the language model is costed, without its image encoder")
    if "freeze_llm" in said and said["freeze_llm"].text.lower() == "false":
        said.pop("freeze_llm")


def _tuned(said: dict[str, Argument]) -> Iterator[str]:
    """The kinds of tuning that a launch names.  Raises Unreadable for one that is not read."""
    for name, read in TUNED.items():
        one = said.pop(name, None)
        if one is not None and one.text not in read:
            text = f"--{name} {one.text} is not read; --set {name}={read[0]} reads it as that"
            raise Unreadable(text, one.file, one.line)
        if one is not None:
            yield one.text


def _aligned(said: dict[str, Argument], launch: ProgramCall, notes: list[str]) -> int:
    """Sequences of a sample: 2 if alignment trains on pairs, else 1.  Raises Unreadable."""
    task = FILE.search(launch.program.text)
    if (task[1] if task else launch.program.text) != "rlhf":
        return 1
    one = said.pop("rlhf_type", None)
    kind = "dpo" if one is None else one.text
    if kind not in ALIGNED:
        place = one or launch.program
        raise place.unreadable(f"--rlhf_type {kind[:60]} is not read; {', '.join(ALIGNED)} are")
    if kind not in PAIRED:
        notes.append(APART)
    response = said.pop("max_completion_length", None)
    if kind == "grpo" and response is not None and response.text.isdecimal():
        prompt = said["max_length"].text if "max_length" in said else ""
        if prompt.isdecimal():
            total = str(int(prompt) + int(response.text))
            said["max_length"] = Argument(total, response.file, response.line)
    return 2 if kind in PAIRED else 1


def _adapted(said: dict[str, Argument], model: ModelSpec) -> dict[str, Any]:
    """The TrainingSpec fields for LoRA, with the defaults of TunerMixin."""
    usual = {"lora_rank": "8", "lora_dropout": "0.05"}
    texts = {name: said[name].text if name in said else text for name, text in usual.items()}
    for name, pattern in (("lora_rank", r"[1-9]\d{0,4}"), ("lora_dropout", r"0?\.\d{1,6}|0")):
        if not re.fullmatch(pattern, texts[name]):
            word = said[name]
            raise word.unreadable(f"--{name} {word.text[:40]!r} is not a number in its range")
    targets = said.pop("target_modules", None)
    for name in (*usual, "lora_alpha", "lora_bias", "use_rslora", "lora_dtype", "merge_lora"):
        said.pop(name, None)
    stated = None if targets is None else _setting("target_modules", targets)
    return adapter_fields(model, int(texts["lora_rank"]), stated, float(texts["lora_dropout"]))


def _setting(name: str, word: Argument) -> Setting:
    return Setting(name=f"--{name}", value=word.text, file=word.file, line=word.line)


def _values_by_option(launch: ProgramCall, given: GivenValues) -> Iterator[tuple[str, Argument]]:
    """Every option with its values joined into one text; the user's given values come last."""
    name, start, values = "", launch.program, list[Argument]()
    end = Argument("--", launch.program.file, launch.program.line)
    for word in (*launch.arguments, end):
        if not option_like(word.text):
            values.append(word)
            continue
        if name:
            text = " ".join(one.text for one in values) if values else "true"
            yield name, Argument(text, start.file, start.line, all(one.known for one in values))
        name, start, values = word.text.removeprefix("--").replace("-", "_"), word, []
    options = ((key, value) for key, value in given.values.items() if not key.isupper())
    for key, value in options:
        yield key.removeprefix("--").replace("-", "_"), Argument(value, SET, 0)


_CONVERTED = re.compile(r"[-_.](mcore|megatron|torch[-_]dist|converted)$", re.IGNORECASE)


def _model(said: dict[str, Argument], launch: ProgramCall, notes: list[str]) -> ModelSpec:
    """The preset by its name, with --mtp_num_layers prediction layers, 0 by default."""
    place = said.get("model", said.get("load", launch.program))
    name = place.text.rstrip("/").rsplit("/", 1)[-1] if place is not launch.program else ""
    if "model" not in said and name:  # a checkpoint that was converted from it
        name = _CONVERTED.sub("", name)
        notes.append(f"no --model: {name} by the name of its checkpoint")
    model = preset(name, "--model is missing", (place.file, place.line), notes)
    asked = said.pop("mtp_num_layers", None)
    count = int(asked.text) if asked is not None and asked.text.isdigit() else 0
    return with_prediction(model, count)


def _world(launch: ProgramCall) -> World:
    """The processes set in its environment; one node if only the number per node is set."""
    said = {
        name: int(text)
        for name in ("NNODES", "NPROC_PER_NODE")
        if re.fullmatch(r"[1-9]\d{0,5}", text := launch.environment.get(name, ""))
    }
    each = said.get("NPROC_PER_NODE")
    unset = "NNODES" not in launch.environment
    nodes = said.get("NNODES", 1 if each and unset else None)
    return World(nodes, each, nodes * each if nodes and each else None)
