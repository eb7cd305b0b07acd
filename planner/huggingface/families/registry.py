"""The registry of families: every table of this package, and the models that contain one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import NamedTuple

from planner.huggingface import families
from planner.huggingface.config import Config
from planner.huggingface.families import vision
from planner.huggingface.families.rows import Family, Fields


def tables() -> dict[str, Family]:
    """The families of every module of this package; a module is found by being there."""
    names = sorted(each.name for each in iter_modules(families.__path__))
    modules = (import_module(f"{families.__name__}.{name}") for name in names if name != "registry")
    return {
        kind: own for module in modules for kind, own in vars(module).get("FAMILIES", {}).items()
    }


FAMILIES = tables()


class TextModel(NamedTuple):
    """The family that reads the text_config of a vision-language model, and its own defaults."""

    family: str
    defaults: Mapping[str, int]


TEXT_MODELS: dict[str, TextModel] = {
    "glm4v_moe_text": TextModel("glm4_moe", {"attention_bias": True}),
    "glm4v_text": TextModel("glm4", {}),
    "qwen2_vl_text": TextModel("qwen2", {"num_key_value_heads": 8}),
    "qwen2_5_vl_text": TextModel("qwen2", {"num_key_value_heads": 8}),
    "qwen2_5_omni_text": TextModel("qwen2", {"num_key_value_heads": 4}),
    "qwen3_vl_text": TextModel("qwen3", {}),
    "qwen3_vl_moe_text": TextModel(
        "qwen3_moe",
        {
            "num_key_value_heads": 16,
            "head_dim": 128,
            "moe_intermediate_size": 1408,
            "num_experts_per_tok": 4,
            "num_experts": 60,
        },
    ),
    "qwen3_omni_moe_text": TextModel("qwen3_moe", {}),
}


@dataclass(frozen=True)
class Wrapper:
    """A vision-language model.

    text: the model_type of its text_config, unless that states another.  encoder: reads its
    vision_config, given the whole config and the language model's width; None: only the language
    model is planned.  tied: whether embeddings are tied by default.  flat: older files have the
    keys of the language model at top level.
    """

    text: str
    encoder: Callable[[Config, Config, int], Fields] | None
    architectures: tuple[str, ...]
    tied: bool = False
    flat: bool = False


WRAPPERS: dict[str, Wrapper] = {
    "aya_vision": Wrapper("cohere2", None, ("AyaVisionForConditionalGeneration",), True),
    "cohere2_vision": Wrapper("cohere2", None, ("Cohere2VisionForConditionalGeneration",), True),
    "deepseek_vl": Wrapper("llama", None, ("DeepseekVLForConditionalGeneration",)),
    "exaone4_5": Wrapper("exaone4", None, ("Exaone4_5_ForConditionalGeneration",)),
    "gemma3": Wrapper("gemma3_text", None, ("Gemma3ForConditionalGeneration",), True),
    "gemma3n": Wrapper("gemma3n_text", None, ("Gemma3nForConditionalGeneration",), True),
    "gemma4": Wrapper("gemma4_text", vision.gemma4, ("Gemma4ForConditionalGeneration",), True),
    "glm46v": Wrapper("glm4v_text", vision.glm4v, ("Glm46VForConditionalGeneration",)),
    "glm4v": Wrapper("glm4v_text", vision.glm4v, ("Glm4vForConditionalGeneration",)),
    "glm4v_moe": Wrapper("glm4v_moe_text", vision.glm4v, ("Glm4vMoeForConditionalGeneration",)),
    "got_ocr2": Wrapper("qwen2", None, ("GotOcr2ForConditionalGeneration",), True),
    "idefics2": Wrapper("mistral", None, ("Idefics2ForConditionalGeneration",)),
    "idefics3": Wrapper("llama", None, ("Idefics3ForConditionalGeneration",)),
    "internvl": Wrapper("qwen2", None, ("InternVLForConditionalGeneration",), True),
    "kimi_k25": Wrapper(
        "deepseek_v3", vision.kimi_k25,
        ("Kimi_K25ForConditionalGeneration", "KimiK25ForConditionalGeneration"), True,
    ),
    "lfm2_vl": Wrapper("lfm2", None, ("Lfm2VlForConditionalGeneration",), True),
    "lighton_ocr": Wrapper("qwen3", None, ("LightOnOcrForConditionalGeneration",), True),
    "llama4": Wrapper("llama4_text", vision.llama4, ("Llama4ForConditionalGeneration",)),
    "llava": Wrapper("llama", None, ("LlavaForConditionalGeneration",), True),
    "llava_next": Wrapper("llama", None, ("LlavaNextForConditionalGeneration",), True),
    "llava_next_video": Wrapper("llama", None, ("LlavaNextVideoForConditionalGeneration",), True),
    "llava_onevision": Wrapper("qwen2", None, ("LlavaOnevisionForConditionalGeneration",), True),
    "minicpm_ocr": Wrapper("qwen3", None, ("MiniCPMOcrForConditionalGeneration",)),
    "minicpmv4_6": Wrapper("qwen3_5_text", None, ("MiniCPMV4_6",)),
    "minimax_m3_vl": Wrapper(
        "minimax_m3_vl_text", vision.minimax_m3, ("MiniMaxM3SparseForConditionalGeneration",)
    ),
    "mistral3": Wrapper("mistral", vision.mistral3, ("Mistral3ForConditionalGeneration",), True),
    "ovis2": Wrapper("qwen2", None, ("Ovis2ForConditionalGeneration",), True),
    "qianfan_ocr": Wrapper("qwen3", None, ("QianfanOCRForConditionalGeneration",), True),
    "qwen2_5_omni_thinker": Wrapper(
        "qwen2_5_omni_text", None, ("Qwen2_5OmniThinkerForConditionalGeneration",)
    ),
    "qwen2_5_vl": Wrapper(
        "qwen2_5_vl_text", vision.qwen2_5_vl, ("Qwen2_5_VLForConditionalGeneration",), flat=True
    ),
    "qwen2_vl": Wrapper(
        "qwen2_vl_text", vision.qwen2_vl, ("Qwen2VLForConditionalGeneration",), flat=True
    ),
    "qwen3_5": Wrapper("qwen3_5_text", vision.qwen3_5, ("Qwen3_5ForConditionalGeneration",)),
    "qwen3_5_moe": Wrapper(
        "qwen3_5_moe_text", vision.qwen3_5, ("Qwen3_5MoeForConditionalGeneration",)
    ),
    "qwen3_vl": Wrapper("qwen3_vl_text", vision.qwen3_vl, ("Qwen3VLForConditionalGeneration",)),
    "qwen3_vl_moe": Wrapper(
        "qwen3_vl_moe_text", vision.qwen3_vl, ("Qwen3VLMoeForConditionalGeneration",)
    ),
    "smolvlm": Wrapper("llama", None, ("SmolVLMForConditionalGeneration",)),
    "step3p7": Wrapper("step3p5", vision.step3p7, ("Step3p7ForConditionalGeneration",)),
    "video_llama_3": Wrapper("qwen2", None, ("VideoLlama3ForConditionalGeneration",)),
    "video_llava": Wrapper("llama", None, ("VideoLlavaForConditionalGeneration",), True),
    "vipllava": Wrapper("llama", None, ("VipLlavaForConditionalGeneration",), True),
}  # fmt: skip
# Models whose vision_config may be null: they then have no encoder.
NO_IMAGES = frozenset({"gemma4"})
FAMILY_OF_ARCHITECTURE: dict[str, str] = {}
for _name, _family in FAMILIES.items():
    for _architecture in _family.architectures:
        FAMILY_OF_ARCHITECTURE.setdefault(_architecture, _name)
