"""The options of scripts that start a Trainer, by the keys that trainers have for them.

Their names for the model, for PEFT's adapters and for what shards differ from script to script.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from planner.frameworks import training_calls, yaml_files
from planner.frameworks.accelerate import swift, tuning
from planner.frameworks.accelerate.trainer_refusals import OTHER_PART, WHOLE
from planner.frameworks.bash import ProgramCall
from planner.frameworks.read_results import Setting

RANK = re.compile(r"(.*_)?lora_(r|rank|dim)|peft_r")
# Option of many scripts -> the key for it; PEFT's may have a prefix.
KEYS = (
    (re.compile(r"((base|pretrained|hf|llm)_)?model(_(name|path|id|dir|checkpoint))?(_or_path)?|"
                r"config_name|(llm|llama|qwen|mistral|gemma)_path"), "model_name_or_path"),
    (re.compile(r"(use_)?grad(ient)?_checkpoint(ing)?"), "gradient_checkpointing"),
    (RANK, "lora_r"),
    (re.compile(r"(.*_)?lora_(target(_module)?s?|target_modules|trainable|modules)|target_modules"),
     "lora_target_modules"),
    (re.compile(r"(.*_)?lora_dropout(_p)?"), "lora_dropout"),
    (re.compile(r"zero"), "zero_stage"),
    (re.compile(r"(deepspeed|ds)_config(_file|_path)?"), "deepspeed"),
)  # fmt: skip
# A file with PEFT's configuration, and its keys.
_STRUCTURED = (".json", ".yaml", ".yml")
_ADAPTER_FILE = re.compile(r"(lora|peft|adapter)_?(config|hyperparams|hparams|args)")
_OF_PEFT = {
    "r": "lora_r", "lora_r": "lora_r", "lora_rank": "lora_r", "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules", "lora_target_modules": "lora_target_modules",
}  # fmt: skip
SWITCH = re.compile(r"((use|enable)_)?((peft|llm)_)?(q_?)?(lora|peft)(_enabled?)?")
QUANTIZED = re.compile(r"(use_)?q_?lora|(use_|load_in_)?(4bit|int4)(_quantization)?|use_4bit.*")
# Where adapters are loaded from or saved.
_ADAPTERS = re.compile(r"(\w+_)?adapters?_(path|dir|name|name_or_path|model|model_path)")
# Options that name how a model is tuned, by values such as lora, qlora, dora and pissa.
_METHOD = re.compile(
    r"(peft|tun(ing|er)|fine_?tun(e|ing)|adapter|train(ing)?)_(method|type|mode|strategy)"
)
_OF_LORA = re.compile(r"(q|do|ada|rs)?lora(plus|\+)?|pissa", re.IGNORECASE)
MODES = ("full", "lora", "qlora")  # Firefly's


def by_key(
    settings: Sequence[Setting], call: ProgramCall, assumed: list[str]
) -> Iterator[tuple[str, Setting]]:
    """The settings by the keys that trainers have for them; the last of each counts."""
    names = (one.name.lstrip("-").replace("-", "_") for one in settings)
    said = dict(zip(map(training_calls.whole_option, names), settings, strict=True))
    if swift.launches(call):
        yield from swift.keys(said, call).items()
        return
    yield from said.items()
    yield from _renamed(said)
    if "task_type" in said and "stage" not in said:  # Firefly's
        yield "stage", said["task_type"]
    if (mode := said.get("train_mode")) is not None and mode.value in MODES:
        yield "finetuning_type", mode
    elif "finetuning_type" not in said:
        yield from _adapters(said, call.program.text.rsplit("/", 1)[-1], assumed)


def of_adapter_file(settings: Sequence[Setting], files: Mapping[str, str]) -> Iterator[Setting]:
    """What a file of adapters says that an option names, and that no option beside it does."""
    names = [one.name.lstrip("-").replace("-", "_") for one in settings]
    stated = {key for pattern, key in KEYS if any(map(pattern.fullmatch, names))}
    for one in settings:
        name = str(one.value).rsplit("/", 1)[-1]
        found = next((known for known in files if known.rsplit("/", 1)[-1] == name), None)
        if found is None or not name.endswith(_STRUCTURED) or not _ADAPTER_FILE.search(one.name):
            continue
        for said in yaml_files.read(files[found], found).settings():
            key = said.name.split(".")[-1]
            if key in _OF_PEFT and _OF_PEFT[key] not in stated:
                yield said.model_copy(update={"name": f"--{_OF_PEFT[key]}"})


def _renamed(said: Mapping[str, Setting]) -> Iterator[tuple[str, Setting]]:
    """The settings of other names by the keys that trainers have for them."""
    for pattern, key in KEYS:
        named = [name for name in said if pattern.fullmatch(name) and not OTHER_PART.search(name)]
        bare = key == "deepspeed" and key in said and said[key].value is None
        if named and (key not in said or bare):
            yield key, said[named[0]]


def _adapters(
    said: Mapping[str, Setting], program: str, assumed: list[str]
) -> Iterator[tuple[str, Setting]]:
    """finetuning_type, by switches under any name, else by options of LoRA, else by the program."""
    # FastChat's --q_lora False leaves adapters on weights of full width.
    switches = [
        one
        for name, one in said.items()
        if SWITCH.fullmatch(name) and (tuning.is_on(one) or not QUANTIZED.fullmatch(name))
    ]
    about = next(iter(_adapting(said, switches, program)), None)
    if about is None:
        return
    if not switches and "finetuning_type" not in said:
        why = f"{about.name} is PEFT's" if "lora" in about.name else "by its name"
        why = f"{about.name} {about.value}" if _names_lora(about) else why
        assumed.append(f"{program} is assumed to train LoRA adapters: {why}")
    yield from _rank(said, switches, assumed)
    trained = said.get("trainable")  # Chinese-LLaMA-Alpaca's
    if trained is not None and "_proj" in str(trained.value):
        yield "lora_target_modules", trained
    kind = "qlora" if _is_packed(said, program) or _names_type(said, assumed) else "lora"
    yield "finetuning_type", about.model_copy(update={"value": kind})
    if "modules_to_save" in said:
        assumed.append("modules_to_save: modules that are trained whole are not costed")


def _rank(
    said: Mapping[str, Setting], switches: Sequence[Setting], assumed: list[str]
) -> Iterator[tuple[str, Setting]]:
    """The rank of adapters, where it has a name of its own; that it is not set is said."""
    ranks = [one for one in switches if str(one.value).isdigit() and int(str(one.value)) > 1]
    if ranks:  # InternVL's --use_llm_lora 16
        yield "lora_r", ranks[0]
    elif "r" in said and "lora_alpha" in said:  # PEFT's own names
        yield "lora_r", said["r"]
    elif not any(RANK.fullmatch(name) for name in said):
        assumed.append("the rank of LoRA is not set: 8 as in PEFT, the program may have its own")


def _adapting(said: Mapping[str, Setting], switches: list[Setting], program: str) -> list[Setting]:
    """The settings that say that adapters are trained; empty where all weights are."""
    own = {name: one for name, one in said.items() if not OTHER_PART.search(name)}
    ranks = {one.value for name, one in own.items() if RANK.fullmatch(name)}
    whole = any(tuning.is_on(said[name]) for name in WHOLE & said.keys())
    if whole or ranks == {"0"}:  # adapters of rank 0 are none
        return []
    if switches:
        return switches if any(map(tuning.is_on, switches)) else []
    found = [one for name, one in own.items() if "lora_" in name or _ADAPTERS.fullmatch(name)]
    found = [*filter(_names_lora, said.values()), *found]
    return found or (list(said.values()) if "lora" in program.lower() else [])


def _names_lora(setting: Setting) -> bool:
    """Whether a setting of how a model is tuned names LoRA or what is derived from it."""
    named = _METHOD.fullmatch(setting.name.lstrip("-").replace("-", "_"))
    return named is not None and _OF_LORA.fullmatch(str(setting.value)) is not None


def _is_packed(said: Mapping[str, Setting], program: str) -> bool:
    """Whether frozen weights have 4 bits, by its options or else by the program's name."""
    names = ("bits", "quantization_bit", "load_in_bits", "quant_bits")
    bits = [said[name].value for name in names if name in said]
    named = any(_names_lora(one) and str(one.value).lower() == "qlora" for one in said.values())
    if not bits and (named or "qlora" in program.lower()):
        return True
    return "4" in bits or any(
        tuning.is_on(one) for name, one in said.items() if QUANTIZED.fullmatch(name)
    )


def _names_type(said: Mapping[str, Setting], assumed: list[str]) -> bool:
    """Whether the type of 4 bits is named and no option switches it, which is said."""
    named = next((name for name in said if name.startswith("bnb_4bit")), None)
    if named is None or any(map(QUANTIZED.fullmatch, said)):
        return False
    assumed.append(f"frozen weights are taken to have 4 bits, of which {named} is")
    return True


def is_tuning(setting: Setting) -> bool:
    """Whether a setting says what is trained, which is read with its other names."""
    name = setting.name.lstrip("-")
    return any(one.fullmatch(name) for one in (SWITCH, QUANTIZED, RANK)) or "load_in" in name
