"""What a trainer on transformers trains: all weights or adapters, in which types, or otherwise."""

from __future__ import annotations

import re
from itertools import chain
from typing import Any, get_args

from cost_models.adapters import AdapterTarget
from cost_models.spec import ModelSpec
from planner.frameworks.accelerate.engines import Engine
from planner.frameworks.accelerate.peft import NAMES
from planner.frameworks.accelerate.trainer_keys import Trainer, kept_in
from planner.frameworks.arguments import to_set
from planner.frameworks.given_values import Values
from planner.frameworks.read_results import Setting, Unreadable

# huggingface/trl#4901.
NARROWED_ADAPTERS = (
    "keeps adapters beside weights of 4 bits in bf16, of which torch scales no gradients as fp16 "
    "needs: bf16, weights that are not quantized, or another trainer"
)
# PEFT's function, which leaves what is frozen beside 4 bits in fp32.
WIDENED = "prepare_model_for_kbit_training"
OFF = ("", "false", "no", "0", "none", "null")
EVERY = ("all", "all-linear", "all_linear")
# Modules of families that fuse or name the matrices in their own way (GPT-NeoX, Falcon, ChatGLM,
# Qwen, Baichuan, InternLM, Phi-3).
_FUSED = {
    "query_key_value": ("linear_qkv",), "c_attn": ("linear_qkv",), "W_pack": ("linear_qkv",),
    "wqkv": ("linear_qkv",), "Wqkv": ("linear_qkv",), "qkv_proj": ("linear_qkv",),
    "dense": ("linear_proj",),
    "c_proj": ("linear_proj", "linear_fc2"), "wo": ("linear_proj",), "out_proj": ("linear_proj",),
    "dense_h_to_4h": ("linear_fc1",), "gate_up_proj": ("linear_fc1",), "fc1": ("linear_fc1",),
    "dense_4h_to_h": ("linear_fc2",), "fc2": ("linear_fc2",), "w1": ("gate_proj",),
    "w3": ("up_proj",), "w2": ("down_proj",),
}  # fmt: skip
# Qwen's first models call the matrices of the MLP w1, w2 and, as that of attention, c_proj.
_OF_QWEN_1 = {
    "c_proj": ("linear_proj", "down_proj"), "w1": ("up_proj",), "w2": ("gate_proj",),
}  # fmt: skip
# Keys of ways to train that no plan has -> what they do.
OTHERWISE = (
    (re.compile(r"use_(galore|apollo)"), "projects gradients to a low rank"),
    (re.compile(r"use_badam|lisa_(n_layers|activated_layers)|relora(_steps)?"),
     "trains other parts of the model in turn"),
    (re.compile(r"use_llama_pro|mixture_of_depths"), "changes the layers"),
    (re.compile(r"use_mca"), "trains by Megatron-Core's adapter"),
    (re.compile(r"teacher_model\w*|kd_\w+"), "distils from another model"),
)  # fmt: skip
# Adapters with a magnitude for each output beside, by PEFT's name and Axolotl's.
DORA = ("use_dora", "peft_use_dora", "lora_use_dora")
# Layers that alone have adapters, by PEFT's name and Axolotl's.
SOME_LAYERS = ("layers_to_transform", "peft_layers_to_transform")
# Parts that are trained whole beside adapters.
WHOLE_PARTS = ("additional_target", "modules_to_save", "lora_modules_to_save")


def is_on(setting: Setting) -> bool:
    """Whether a switch is on.  Raises Unreadable if the files leave it open."""
    if "$" in str(setting.value):
        text = str(setting.value)
        raise setting.unreadable(
            f"{setting.name} is {text}, which the files do not say: {to_set(text)}"
        )
    return str(setting.value or "true").lower() not in OFF


def refuse_other_ways(values: Values) -> None:
    """Raises Unreadable if a key that is on trains in a way that no plan has."""
    for key, one in values.settings.items():
        for pattern, does in OTHERWISE:
            if pattern.fullmatch(key) and str(one.value or "true").lower() not in OFF:
                raise one.unreadable(f"{one.name} {one.value or ''}: it {does}, which no plan has")
    if values.has("use_adam_mini") and values.boolean("use_adam_mini"):
        values.assume("Adam-mini, with one second moment a block, is costed as Adam")


def half_of(values: Values, beside: tuple[str, str]) -> str:
    """The half precision of a training, by its switches, else beside them and by whom."""
    half = "fp16" if values.boolean("fp16") else "bf16"
    stated = ("bf16", "tf32", "pure_bf16")
    on = [key for key in stated if (values.text(key) or "").lower() not in OFF]
    if half == "bf16" and not set(on) - {"tf32"} and beside[0]:
        half = beside[0]
        values.assume(f"neither bf16 nor fp16 is on: {half} by {beside[1]}")
    elif half == "bf16" and not set(on) - {"tf32"}:
        values.assume("neither bf16 nor fp16 is on: plans have no fp32 training, bf16 assumed")
    return half


def types(
    values: Values,
    trainer: Trainer,
    sharding: Engine,
    half: str,
    reduced: str,
    adapters: dict[str, Any],
) -> dict[str, Any]:
    """The adapters' fields, and the types of what is kept and reduced."""
    loaded = trainer.loads_half and _loaded_in_half(values, half)
    pure = loaded or trainer.trains_half or values.boolean("pure_bf16")
    if pure and sharding.own and not adapters:
        if half == "fp16":
            kept = "bf16" if loaded else "fp16"
            raise Unreadable(
                f"{trainer.title} keeps weights in {kept}, of which torch scales no gradients for "
                "fp16"
            )
        return kept_in(half)
    packed = adapters.get("frozen_dtype", "").startswith("nf4")
    if trainer.narrows_adapters and packed and half == "bf16":
        return {**adapters, **kept_in("bf16")}
    return {"gradient_dtype": sharding.kept, "gradient_reduce_dtype": reduced, **adapters}


def _loaded_in_half(values: Values, half: str) -> bool:
    """Whether weights are loaded in bf16, which stay so without shards and their fp32 copies."""
    stated = (values.text("torch_dtype", "dtype") or "").removeprefix("torch.")
    if values.has("fsdp", "deepspeed"):
        return False
    if stated == "auto" and half == "bf16":
        values.assume("the weights are loaded as they are stored: taken as bf16")
        return True
    return stated == "bfloat16"


def adapters_of(
    values: Values, trainer: Trainer, tree: dict[str, Any], model: ModelSpec
) -> dict[str, Any]:
    """The fields of adapters in the training spec, and the type of frozen weights."""
    usual = "lora" if values.boolean("use_peft") else trainer.usual_tuning
    kind = values.text("finetuning_type", "adapter") or usual
    if kind in ("full", "none"):
        return {}
    if kind not in ("lora", "qlora"):
        raise Unreadable(f"{kind} cannot be read: only full training, lora and qlora")
    listed = next((tree[key] for key in trainer.targets if tree.get(key)), None)
    values.has(
        *trainer.targets,
        "lora_target_linear",
        "lora_alpha",
        "bnb_4bit_quant_storage",
        "load_in_4bit",
    )
    _say_uncosted(values)
    frozen = _packed(values) if kind == "qlora" else _frozen(values)
    if frozen.startswith("nf4") and model.moe is not None:
        _say_packed_experts(values)
    return {
        "lora_rank": values.integer(trainer.rank, default=trainer.usual_rank),
        "lora_targets": _targets(values, trainer, listed),
        "lora_dropout": values.probability("lora_dropout"),
        "frozen_dtype": frozen,
    }


def _say_packed_experts(values: Values) -> None:
    """What is assumed of experts beside frozen weights of 4 bits, unless Axolotl packs them too."""
    if not values.boolean("quantize_moe_experts"):
        values.assume(
            "weights of experts are taken in 4 bits too: with transformers 5 bitsandbytes leaves "
            "them in half precision"
        )


def _packed(values: Values) -> str:
    return "nf4 and fp32" if values.boolean(WIDENED) else "nf4"


def _targets(values: Values, trainer: Trainer, listed: Any) -> tuple[str, ...]:
    """The modules with adapters; what is assumed of those that are not stated or known."""
    every = values.boolean("lora_target_linear")
    if listed is None and not every:
        return _usual(values, trainer)
    known = (str(values.settings[key].value) for key in trainer.model if key in values.settings)
    if not every and any("starcoder2" in one.lower() for one in known):
        listed = _of_starcoder(values, _names(listed))
    return NAMES if every else targets(values, listed)


def _of_starcoder(values: Values, names: list[str]) -> list[str]:
    """Names of StarCoder 2's modules, whose MLP has c_fc and c_proj, by those of other models."""
    absent = [one for one in names if one in ("gate_proj", "up_proj", "down_proj")]
    if absent:
        values.assume(f"StarCoder 2 has no {', '.join(absent)}: no adapters there, as in PEFT")
    own = {"c_fc": "up_proj", "c_proj": "down_proj"}
    return [own.get(one, one) for one in names if one not in absent]


def targets(values: Values, listed: Any) -> tuple[str, ...]:
    """The modules with adapters of a list or text; what is assumed of unknown ones is said."""
    names = _names(listed)
    if set(names) & set(EVERY):
        return _every(values, names)
    found: dict[str, tuple[str, ...]] = {
        one: (one,) for one in names if one in get_args(AdapterTarget)
    }
    # Where names of many families stand in one list, those of the model at hand are its own.
    fused = _FUSED | (_OF_QWEN_1 if {"c_proj", "w1"} <= set(names) else {})
    found = found or {one: fused[one] for one in names if one in fused}
    other = ", ".join(one for one in names if one not in found)[:80]
    if other:
        values.assume(
            f"adapters at {other} are {'not costed' if found else 'costed at every linear layer'}"
        )
    return tuple(dict.fromkeys(chain.from_iterable(found.values()))) or NAMES


def _every(values: Values, names: list[str]) -> tuple[str, ...]:
    """Every linear layer of the blocks; modules that are named beside them are said."""
    if beside := [one for one in names if one not in (*EVERY, *NAMES)]:
        values.assume(f"adapters at {', '.join(beside)[:80]} are not costed")
    return NAMES


def _names(listed: Any) -> list[str]:
    """The last parts of the names in a list, or in a text."""
    text = listed if isinstance(listed, str) else " ".join(map(str, listed or EVERY))
    return [one.rsplit(".", 1)[-1] for one in re.split(r"[^\w.-]+", text) if one]


def _usual(values: Values, trainer: Trainer) -> tuple[str, ...]:
    """The modules that the trainer, or PEFT under it, adapts where none are listed."""
    where = f"{trainer.targets[0]}: not set"
    if trainer.usual_targets:
        values.assume(f"{where}, {' and '.join(trainer.usual_targets)} as in PEFT")
    elif trainer.usual_tuning == "full":
        values.assume(f"{where}, adapters are assumed at every linear layer")
    return trainer.usual_targets or NAMES


def _frozen(values: Values) -> str:
    """How frozen weights are stored."""
    bits = values.text("quantization_bit")
    if values.boolean("load_in_8bit") or bits == "8":
        values.assume("frozen weights of 8 bits are costed as 16: plans have 16 or 4")
    return "nf4" if values.boolean("load_in_4bit") or bits == "4" else "as trained"


def _say_uncosted(values: Values) -> None:
    """Says what is trained beside adapters, or otherwise than costed."""
    if parts := [key for key in WHOLE_PARTS if values.has(key)]:
        values.assume(f"{parts[0]}: modules that are trained whole beside adapters are not costed")
    if values.boolean("resize_vocab"):
        values.assume(
            "resize_vocab: embedding and output layer are trained whole beside adapters, which is "
            "not costed"
        )
    if values.has(*SOME_LAYERS):
        values.assume(f"{SOME_LAYERS[0]}: adapters in some layers are costed in every layer")
    if values.boolean(*DORA):
        values.assume("DoRA is costed as LoRA")
