"""Vocabulary sizes of tokenizers by kind, by name, or by a path that ends in the name.

Sizes are the embedding rows in the published config.json of a model with the tokenizer, or else
come from the tokenizer's own files.
"""

from __future__ import annotations

import re

from cost_models.catalog import models
from cost_models.catalog.names import UnknownName

# Tokenizer types of Megatron-LM, Megatron-DeepSpeed and GPT-NeoX with a fixed vocabulary.
KINDS = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000, "AquilaTokenizer": 100_008}
# Pattern of a lower-case name or path -> tokens; the first match counts, so newer versions of a
# family come first.
_NAMES: tuple[tuple[str, int], ...] = (
    (r"qwen-?_?3[._p](5|6)", 248_320),
    (r"qwen-?_?3", 151_936),
    (r"qwen-?_?(2[._p]5|2|1[._p]5).*?\b(7|14|32|57|72|110)b", 152_064),
    (r"qwen-?_?(2[._p]5|2|1[._p]5)", 151_936),
    (r"llama-?_?4", 202_048),
    (r"llama-?_?3", 128_256),
    (r"codellama|code-llama", 32_016),
    (r"llama", 32_000),
    (r"deepseek-?_?(v?3|v?4|r1)", 129_280),
    (r"deepseek-?_?(v?2|llm|moe)", 102_400),
    (r"deepseek-?_?coder", 32_256),
    (r"moonlight|kimi", 163_840),
    (r"mixtral-?_?8x22b-(v0\.3|instruct)", 32_768),
    (r"mixtral|mistral-?_?7b-(instruct-)?v0\.[12]|mistral-?_?7b$", 32_000),
    (r"mistral-?_?7b.*v0\.3|codestral", 32_768),
    (r"mistral-?_?(nemo|small)|magistral|tekken", 131_072),
    (r"gemma-?_?(3|4)", 262_144),
    (r"gemma", 256_000),
    (r"gpt-?_?oss", 201_088),
    (r"gpt-?_?neox|pythia|20b_tokenizer", 50_277),
    (r"gpt-?2|gpt-2|distilgpt2|opt-", 50_257),
    (r"bloom|bigscience[/_-]tokenizer", 250_680),
    (r"smollm3", 128_256),
    (r"smollm|cosmo2?-tokenizer|starcoder2?|santacoder", 49_152),
    (r"olmo-?2|olmo-?3|dolma2", 100_278),
    (r"olmo", 50_280),
    (r"phi-?_?4", 100_352),
    (r"phi-?_?3", 32_064),
    (r"glm-?_?5", 154_880),
    (r"glm-?_?4", 151_552),
    (r"chatglm", 65_024),
    (r"nemotron-?_?(2_256k|4)", 256_000),
    (r"nemotron|apertus|longcat", 131_072),
    (r"falcon", 65_024),
    (r"minimax", 200_064),
    (r"(^|[/_-])(ling|ring)[-_]", 157_184),
    (r"seed-?_?oss", 155_136),
    (r"baichuan-?2", 125_696),
    (r"internlm-?2", 92_544),
    (r"(^|[/_-])yi-", 64_000),
    (r"mistral", 32_000),
)


def tokenizer_tokens(text: str) -> int | None:
    """Vocabulary size of the tokenizer in a name or path; None if it is unknown."""
    parts = [part for part in text.rstrip("/").split("/") if part]
    for part in (text, "/".join(parts[-2:]), *parts[-1:]):
        try:
            return models.model(part).vocab_size
        except UnknownName:
            continue
    # The last part of a path that matches is the most specific.
    for part in reversed(parts):
        for pattern, size in _NAMES:
            if re.search(pattern, part.lower()):
                return size
    return None
