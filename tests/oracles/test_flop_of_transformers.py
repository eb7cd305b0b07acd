"""FLOP of whole models as transformers runs them, against ours of the same models, small.

transformers' eager code computes the whole attention square, and products that fused kernels run as
something else; what differs is named where it is said.
"""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.blocks.base import Sublayer
from cost_models.flops import forward_flop
from cost_models.spec import ModelSpec

pytestmark = pytest.mark.slow

TOKENS, HIDDEN, LAYERS = 64, 64, 4
USUAL: dict[str, Any] = {
    "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 512,
    "max_position_embeddings": 256,
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
}  # fmt: skip
LATENT: dict[str, Any] = {
    **USUAL, **EXPERTS, "kv_lora_rank": 16, "q_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "qk_head_dim": 24, "head_dim": 8,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "num_key_value_heads": 4,
}  # fmt: skip
INDEX = {"index_n_heads": 4, "index_head_dim": 8, "index_topk": 1000}
CASES: dict[str, dict[str, Any]] = {
    "llama": USUAL,
    "gemma2": {**USUAL, "sliding_window": 256},
    "deepseek_v3": LATENT,
    "mimo_v2_flash": {**USUAL, **EXPERTS, "num_experts": 8, "v_head_dim": 8, "sliding_window": 256},
    "gemma4_text": {
        **USUAL, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 512,
        "global_head_dim": 16, "num_kv_shared_layers": 0, "sliding_window": 256,
    },
    "t5": {
        "d_model": HIDDEN, "d_kv": 16, "d_ff": 128, "num_layers": LAYERS, "num_heads": 4,
        "num_decoder_layers": LAYERS, "vocab_size": 512,
    },
    "deepseek_v32": {**LATENT, **INDEX},
}  # fmt: skip
# The indexer's scores are causal and summed over heads in one kernel; there the whole square is
# computed, and the sum is a product.
SCORES = LAYERS * (TOKENS**2 * 4 * 8 + 2 * TOKENS**2 * 4)


def counted(model_type: str, fields: dict[str, Any]) -> tuple[int, ModelSpec]:
    """FLOP of one forward pass, and the model as it is read from its modules."""
    import torch
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    from planner.huggingface.module_inspection import inspect_model

    config = transformers.CONFIG_MAPPING[model_type](**fields)
    auto = transformers.AutoModelForCausalLM
    inputs: dict[str, Any] = {"input_ids": torch.randint(0, 500, (1, TOKENS)), "use_cache": False}
    if model_type == "t5":
        auto = transformers.AutoModelForSeq2SeqLM
        inputs["decoder_input_ids"] = inputs["input_ids"]
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = auto.from_config(config, **eager).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(**inputs)
    return counter.get_total_flops(), with_positions(inspect_model(model, config, model_type).model)


def with_positions(model: ModelSpec) -> ModelSpec:
    """The same with as many positions in an encoder as the decoder has tokens."""
    positions = {"tokens": TOKENS}

    def placed(block: Sublayer) -> Sublayer:
        return block.model_copy(update=positions) if block.kind == "cross_attention" else block

    pattern = [[placed(block) for block in layer] for layer in model.layer_pattern]
    encoders = [one.model_copy(update=positions) for one in model.encoders]
    return model.model_copy(
        update={"layer_pattern": tuple(map(tuple, pattern)), "encoders": tuple(encoders)}
    )


@pytest.mark.parametrize("name", CASES)
def test_flop_are_those_of_transformers(name: str) -> None:
    theirs, model = counted(name, CASES[name])
    ours = forward_flop(model, float(TOKENS), float(TOKENS), causal=False)
    assert ours + (SCORES if name == "deepseek_v32" else 0) == theirs


def test_compressed_attention_and_streams() -> None:
    """Streams are mixed by products there and by passes here, 2 S n h and 2 S n^2 h a block; the
    scores of the choice are halved and summed as the indexer's.
    """
    fields = {
        **USUAL, **EXPERTS, **INDEX, "q_lora_rank": 32, "o_lora_rank": 16, "o_groups": 2,
        "sliding_window": 64, "num_key_value_heads": 1, "head_dim": 32,
    }  # fmt: skip
    theirs, model = counted("deepseek_v4", fields)
    assert model.residual_streams == 4
    assert {layer[0].kind for layer in model.layer_pattern} == {"compressed_attention"}
    ours = forward_flop(model, float(TOKENS), float(TOKENS), causal=False)
    assert ours == pytest.approx(theirs, rel=0.02)
    assert ours < theirs
