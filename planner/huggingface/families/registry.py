"""The registry of families: the reader of each model_type, one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from planner.huggingface.config import Config
from planner.huggingface.families import (
    dense,
    dense_2025,
    gemma,
    gpt,
    hybrids,
    latent_experts,
    mixtures,
    mixtures_2025,
    state_space,
    vision,
)
from planner.huggingface.families.shared_fields import Fields


@dataclass(frozen=True)
class Family:
    """The reader of a family's config, and the architectures that are built from it."""

    read: Callable[[Config], Fields]
    architectures: tuple[str, ...]


FAMILIES: dict[str, Family] = {
    "afmoe": Family(mixtures_2025.afmoe, ("AfmoeForCausalLM",)),
    "apertus": Family(dense_2025.apertus, ("ApertusForCausalLM",)),
    "arcee": Family(dense_2025.arcee, ("ArceeForCausalLM",)),
    "bamba": Family(state_space.bamba, ("BambaForCausalLM",)),
    "bloom": Family(gpt.bloom, ("BloomForCausalLM",)),
    "chatglm": Family(dense.chatglm, ("ChatGLMModel", "ChatGLMForConditionalGeneration")),
    "cohere": Family(dense.cohere, ("CohereForCausalLM",)),
    "cohere2": Family(dense.cohere2, ("Cohere2ForCausalLM",)),
    "cwm": Family(dense_2025.cwm, ("CwmForCausalLM",)),
    "deepseek": Family(mixtures_2025.deepseek, ("DeepseekForCausalLM",)),
    "deepseek_v2": Family(mixtures.deepseek_v2, ("DeepseekV2ForCausalLM",)),
    "deepseek_v3": Family(mixtures.deepseek_v3, ("DeepseekV3ForCausalLM",)),
    "deepseek_v32": Family(latent_experts.deepseek_v32, ("DeepseekV32ForCausalLM",)),
    "deepseek_v4": Family(latent_experts.deepseek_v4, ("DeepseekV4ForCausalLM",)),
    "dots1": Family(mixtures_2025.dots1, ("Dots1ForCausalLM",)),
    "ernie4_5": Family(dense_2025.ernie4_5, ("Ernie4_5ForCausalLM",)),
    "ernie4_5_moe": Family(mixtures_2025.ernie4_5_moe, ("Ernie4_5_MoeForCausalLM",)),
    "exaone4": Family(dense_2025.exaone4, ("Exaone4ForCausalLM",)),
    "exaone_moe": Family(mixtures_2025.exaone_moe, ("ExaoneMoeForCausalLM",)),
    "falcon": Family(gpt.falcon, ("FalconForCausalLM",)),
    "falcon_h1": Family(state_space.falcon_h1, ("FalconH1ForCausalLM",)),
    "falcon_mamba": Family(state_space.mamba, ("FalconMambaForCausalLM",)),
    "flex_olmo": Family(mixtures_2025.flex_olmo, ("FlexOlmoForCausalLM",)),
    "gemma": Family(dense.gemma, ("GemmaForCausalLM",)),
    "gemma2": Family(dense.gemma2, ("Gemma2ForCausalLM",)),
    "gemma3_text": Family(dense.gemma3, ("Gemma3ForCausalLM",)),
    "gemma3n_text": Family(gemma.gemma3n, ("Gemma3nForCausalLM",)),
    "gemma4_text": Family(gemma.gemma4, ("Gemma4ForCausalLM",)),
    "glm": Family(dense.glm, ("GlmForCausalLM",)),
    "glm4": Family(dense.glm4, ("Glm4ForCausalLM",)),
    "glm4_moe": Family(mixtures.glm4_moe, ("Glm4MoeForCausalLM",)),
    "glm4_moe_lite": Family(mixtures_2025.glm4_moe_lite, ("Glm4MoeLiteForCausalLM",)),
    "glm_moe_dsa": Family(latent_experts.glm_moe_dsa, ("GlmMoeDsaForCausalLM",)),
    "gpt2": Family(gpt.gpt2, ("GPT2LMHeadModel",)),
    "gpt_bigcode": Family(gpt.gpt_bigcode, ("GPTBigCodeForCausalLM",)),
    "gpt_neox": Family(gpt.gpt_neox, ("GPTNeoXForCausalLM",)),
    "gpt_oss": Family(mixtures.gpt_oss, ("GptOssForCausalLM",)),
    "gptj": Family(gpt.gptj, ("GPTJForCausalLM",)),
    "granite": Family(dense.llama, ("GraniteForCausalLM",)),
    "granitemoe": Family(mixtures_2025.granite_moe, ("GraniteMoeForCausalLM",)),
    "granitemoehybrid": Family(state_space.granite_hybrid, ("GraniteMoeHybridForCausalLM",)),
    "granitemoeshared": Family(mixtures_2025.granite_moe_shared, ("GraniteMoeSharedForCausalLM",)),
    "helium": Family(dense_2025.helium, ("HeliumForCausalLM",)),
    "hunyuan_v1_dense": Family(dense_2025.hunyuan, ("HunYuanDenseV1ForCausalLM",)),
    "hunyuan_v1_moe": Family(mixtures_2025.hunyuan_moe, ("HunYuanMoEV1ForCausalLM",)),
    "internlm": Family(dense_2025.internlm2, ("InternLMForCausalLM",)),
    "internlm2": Family(dense_2025.internlm2, ("InternLM2ForCausalLM",)),
    "internlm3": Family(dense_2025.internlm3, ("InternLM3ForCausalLM",)),
    "jamba": Family(state_space.jamba, ("JambaForCausalLM",)),
    "kimi_linear": Family(latent_experts.kimi_linear, ("KimiLinearForCausalLM",)),
    "lfm2": Family(state_space.lfm2, ("Lfm2ForCausalLM",)),
    "lfm2_moe": Family(state_space.lfm2_moe, ("Lfm2MoeForCausalLM",)),
    "llama": Family(dense.llama, ("LlamaForCausalLM",)),
    "llama4_text": Family(latent_experts.llama4, ("Llama4ForCausalLM",)),
    "longcat_flash": Family(mixtures_2025.longcat_flash, ("LongcatFlashForCausalLM",)),
    "mamba": Family(state_space.mamba, ("MambaForCausalLM",)),
    "mamba2": Family(state_space.mamba2_alone, ("Mamba2ForCausalLM",)),
    "mimo": Family(dense_2025.mimo, ("MiMoForCausalLM",)),
    "mimo_v2_flash": Family(latent_experts.mimo_v2_flash, ("MiMoV2FlashForCausalLM",)),
    "minicpm3": Family(dense_2025.minicpm3, ("MiniCPM3ForCausalLM",)),
    "minimax": Family(state_space.minimax, ("MiniMaxForCausalLM",)),
    "minimax_m2": Family(latent_experts.minimax_m2, ("MiniMaxM2ForCausalLM",)),
    "minimax_m3": Family(latent_experts.minimax_m3, ("MiniMaxM3ForCausalLM",)),
    "minimax_m3_vl_text": Family(
        latent_experts.minimax_m3, ("MiniMaxM3VLForCausalLM", "MiniMaxM3SparseForCausalLM")
    ),
    "ministral": Family(dense_2025.ministral, ("MinistralForCausalLM",)),
    "ministral3": Family(dense_2025.ministral3, ("Ministral3ForCausalLM",)),
    "mistral": Family(dense.mistral, ("MistralForCausalLM",)),
    "mistral4": Family(mixtures_2025.mistral4, ("Mistral4ForCausalLM",)),
    "mixtral": Family(mixtures.mixtral, ("MixtralForCausalLM",)),
    "mpt": Family(gpt.mpt, ("MptForCausalLM", "MPTForCausalLM")),
    "nemotron": Family(dense.nemotron, ("NemotronForCausalLM",)),
    "nemotron-nas": Family(dense_2025.nemotron_nas, ("DeciLMForCausalLM",)),
    "nemotron_h": Family(hybrids.nemotron_h, ("NemotronHForCausalLM",)),
    "olmo": Family(dense_2025.olmo, ("OlmoForCausalLM",)),
    "olmo2": Family(dense.olmo2, ("Olmo2ForCausalLM",)),
    "olmo3": Family(dense_2025.olmo3, ("Olmo3ForCausalLM",)),
    "olmo_hybrid": Family(state_space.olmo_hybrid, ("OlmoHybridForCausalLM",)),
    "olmoe": Family(mixtures.olmoe, ("OlmoeForCausalLM",)),
    "opt": Family(gpt.opt, ("OPTForCausalLM",)),
    "phi": Family(dense.phi, ("PhiForCausalLM",)),
    "phi-msft": Family(dense_2025.phi_msft, ("PhiForCausalLM", "MixFormerSequentialForCausalLM")),
    "phi3": Family(dense.phi3, ("Phi3ForCausalLM",)),
    "phimoe": Family(mixtures_2025.phimoe, ("PhimoeForCausalLM", "PhiMoEForCausalLM")),
    "qwen2": Family(dense.qwen2, ("Qwen2ForCausalLM",)),
    "qwen2_moe": Family(mixtures.qwen2_moe, ("Qwen2MoeForCausalLM",)),
    "qwen3": Family(dense.qwen3, ("Qwen3ForCausalLM",)),
    "qwen3_5_moe_text": Family(hybrids.qwen3_5_moe, ("Qwen3_5MoeForCausalLM",)),
    "qwen3_5_text": Family(hybrids.qwen3_5, ("Qwen3_5ForCausalLM",)),
    "qwen3_moe": Family(mixtures.qwen3_moe, ("Qwen3MoeForCausalLM",)),
    "qwen3_next": Family(hybrids.qwen3_next, ("Qwen3NextForCausalLM",)),
    "recurrent_gemma": Family(state_space.recurrent_gemma, ("RecurrentGemmaForCausalLM",)),
    "rwkv": Family(state_space.rwkv, ("RwkvForCausalLM",)),
    "seed_oss": Family(dense_2025.seed_oss, ("SeedOssForCausalLM",)),
    "smollm3": Family(dense_2025.smollm3, ("SmolLM3ForCausalLM",)),
    "solar_open": Family(mixtures_2025.solar_open, ("SolarOpenForCausalLM",)),
    "stablelm": Family(dense.stablelm, ("StableLmForCausalLM",)),
    "starcoder2": Family(dense.starcoder2, ("Starcoder2ForCausalLM",)),
    "step3p5": Family(mixtures_2025.step3p5, ("Step3p5ForCausalLM",)),
    "vaultgemma": Family(dense_2025.vaultgemma, ("VaultGemmaForCausalLM",)),
    "youtu": Family(dense_2025.youtu, ("YoutuForCausalLM",)),
}


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
