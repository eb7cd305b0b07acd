"""Layers of families that are read by hand, against those that the modules of transformers show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cost_models.blocks.base import Sublayer
from cost_models.blocks.records import Split
from cost_models.layers import layers_of
from cost_models.spec import ModelSpec
from planner.huggingface import model_from_config
from tests.oracles.test_transformers_defaults import defaults

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

from planner.huggingface.module_inspection import inspect_model  # noqa: E402 (it needs torch)

LAYERS = 12  # several periods of most patterns; LFM2's experts are read with four
KINDS = """
afmoe apertus arcee bamba cwm deepseek_v32 deepseek_v4 dots1 ernie4_5 ernie4_5_moe exaone4
exaone_moe falcon_h1 falcon_mamba flex_olmo glm4_moe_lite glm_moe_dsa granitemoe
granitemoehybrid granitemoeshared helium internlm3 jamba kimi_linear lfm2 lfm2_moe llama4_text
mamba mamba2 mimo_v2_flash minicpm3 minimax minimax_m2 minimax_m3_vl_text ministral3 nemotron_h
olmo olmo3 olmo_hybrid phimoe qwen3_5_moe_text qwen3_5_text qwen3_next recurrent_gemma rwkv
seed_oss smollm3 solar_open vaultgemma youtu
"""


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import transformers

    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


def layers(model: ModelSpec) -> list[list[tuple[Any, ...]]]:
    """What each layer is made of: kinds, parameters and reach of its blocks, first to last."""
    found = layers_of(model)
    return [[_said(block, model) for block in found.kinds[i].sublayers] for i in found.order]


def _said(block: Sublayer, model: ModelSpec) -> tuple[Any, ...]:
    elements = round(float(sum(weight.elements for weight in block.weights(model, Split()))))
    reach = [getattr(block, name, None) for name in ("window", "chunk", "compression")]
    branches = sorted(_said(branch, model) for branch in getattr(block, "branches", ()))
    return (block.kind, elements, *map(str, reach), *branches)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", KINDS.split())
def test_layers_are_those_of_the_modules(kind: str) -> None:
    import transformers

    config = defaults(kind, 4 if kind == "lfm2_moe" else LAYERS)
    built = transformers.CONFIG_MAPPING[kind].from_dict(config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(built)
    looked = inspect_model(model, built, kind)
    assert not looked.left
    assert layers(model_from_config(config).model) == layers(looked.model)


def test_an_indexer_of_blocks_is_that_of_the_modules() -> None:
    import transformers

    kind = "minimax_m3_vl_text"
    config = defaults(kind, 4) | {"num_hidden_layers": 4}
    config["layer_types"] = ["full_attention"] + ["minimax_m3_sparse"] * 3
    config |= {"index_block_size": 64, "index_topk_blocks": 8}
    built = transformers.CONFIG_MAPPING[kind].from_dict(config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(built)
    looked = inspect_model(model, built, kind)
    assert not looked.left + looked.approximate
    mixers = [
        [layer[0] for layer in one.layer_pattern]
        for one in (model_from_config(config).model, looked.model)
    ]
    assert mixers[0][0].indexer is None
    assert mixers[0][-1].title == "top 8 blocks of 64 attention"
    assert mixers[0] == mixers[1]
