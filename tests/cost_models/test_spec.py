"""Documents of the cost model: the least and the most of every number, and what one leaves out."""

from __future__ import annotations

import re
from typing import Annotated, Any

import pytest
from pydantic import TypeAdapter, ValidationError

from cost_models.blocks import SUBLAYERS
from cost_models.blocks.attention import Attention
from cost_models.blocks.compressed_attention import Choice
from cost_models.blocks.indexer import Indexer
from cost_models.blocks.products import Product
from cost_models.fields import Spec
from cost_models.numerics import Numerics
from cost_models.plans import ParallelPlan
from cost_models.spec import (
    AcceleratorSpec,
    ClusterSpec,
    EncoderSpec,
    MLASpec,
    ModelSpec,
    MoESpec,
    NetworkTier,
    NodeGroup,
    TrainingSpec,
)

DOCUMENTS: tuple[type[Spec], ...] = (
    MLASpec, MoESpec, ModelSpec, EncoderSpec, *SUBLAYERS, Indexer, Choice, Product, AcceleratorSpec,
    NetworkTier, NodeGroup, ClusterSpec, TrainingSpec, ParallelPlan,
)  # fmt: skip
ABOVE_0 = 5e-324  # the least float above it
BELOW_1 = 1.0 - 2.0**-53
# The least and the most, and the fields with these bounds.
BOUNDS: list[tuple[float, float, str]] = [
    (1, 10**6, "MLASpec: kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim"),
    (2, 10**5, "MoESpec: num_experts"),
    (1, 10**4, "MoESpec: top_k"),
    (1, 10**6, "MoESpec: expert_ffn_hidden_size latent_size"),
    (0, 10**5, "MoESpec: zero_experts"),
    (0, 10**6, "MoESpec: shared_expert_ffn_hidden_size"),
    (0, 10**4, "MoESpec: num_dense_layers"),
    (1, 1000, "MoESpec: layer_frequency"),
    (0, 1000, "MoESpec: layer_offset"),
    (1, 10**7, "MoESpec: num_groups top_k_groups"),
    (ABOVE_0, 1e3, "MoESpec: capacity_factor"),
    (1.0, 1e3, "MoESpec: imbalance_factor"),
    (1, 10**4, "ModelSpec: num_layers"),
    (1, 10**6, "ModelSpec: hidden_size head_dim ffn_hidden_size"),
    (1, 10**5, "ModelSpec: num_attention_heads num_query_groups"),
    (1, 10**7, "ModelSpec: vocab_size max_position_embeddings sliding_window"),
    (1, 10**7, "ModelSpec: full_attention_period"),
    (0, 8, "ModelSpec: norms_per_layer"),
    (0, 16, "ModelSpec: mtp_num_layers"),
    (0.0, BELOW_1, "ModelSpec: hidden_dropout attention_dropout"),
    (1, 64, "ModelSpec: residual_streams"),
    (1, 10**6, "ModelSpec: embedding_size per_layer_input_size"),
    (1, 10**7, "ModelSpec: per_layer_input_vocab_size"),
    (0, 10**13, "ModelSpec: other_parameters"),
    (1, 10**4, "EncoderSpec: num_layers"),
    (1, 10**6, "EncoderSpec: hidden_size head_dim ffn_hidden_size input_width"),
    (1, 10**5, "EncoderSpec: num_attention_heads num_query_groups"),
    (1, 10**7, "EncoderSpec: max_position_embeddings sliding_window full_attention_period merge"),
    (0, 8, "EncoderSpec: norms_per_layer"),
    (0.0, BELOW_1, "EncoderSpec: hidden_dropout attention_dropout"),
    (1, 64, "EncoderSpec: residual_streams"),
    (1, 10**8, "EncoderSpec: tokens span"),
    (0, 10**13, "EncoderSpec: other_parameters"),
    (1, 10**7, "Attention: window chunk num_attention_heads num_query_groups"),
    (1, 10**6, "Attention: head_dim value_head_dim"),
    (1, 10**7, "CompressedAttention: o_groups window compression"),
    (1, 10**6, "CompressedAttention: q_lora_rank o_lora_rank"),
    (1, 10**7, "CrossAttention: tokens num_query_groups"),
    (1, 10**6, "CrossAttention: source_width"),
    (1, 10**7, "GatedDeltaNet: num_key_heads num_value_heads convolution"),
    (1, 10**6, "GatedDeltaNet: key_head_dim value_head_dim decay_rank gate_rank"),
    (1, 10**7, "LatentAttention: window"),
    (1, 10**7, "LightningAttention: num_heads"),
    (1, 10**6, "LightningAttention: head_dim"),
    (1, 10**6, "LinearRecurrentUnit: width"),
    (1, 10**7, "LinearRecurrentUnit: num_blocks convolution"),
    (1, 10**6, "Mamba: inner_size state_size time_step_rank"),
    (1, 10**7, "Mamba: convolution"),
    (1, 10**6, "Mamba2: head_dim state_size"),
    (1, 10**7, "Mamba2: num_heads num_groups convolution chunk_size"),
    (1, 10**6, "MLP: width"),
    (1, 10**6, "PerLayerInput: size"),
    (0, 10**13, "Products: parameters"),
    (1, 10**6, "ChannelMix: width"),
    (1, 10**6, "TimeMix: width"),
    (1, 10**7, "ShortConvolution: taps"),
    (1, 10**7, "Indexer: num_heads top_k block_size"),
    (1, 10**6, "Indexer: head_dim"),
    (1, 10**7, "Choice: num_heads top_k"),
    (1, 10**6, "Choice: head_dim"),
    (1, 10**6, "Product: inputs outputs"),
    (1, 10**5, "Product: times"),
    (1e6, 1e16, "AcceleratorSpec: memory_bytes"),
    (1e4, 1e18, "AcceleratorSpec: memory_bytes_per_s"),
    (1e6, 1e20, "AcceleratorSpec: peak_bf16_flop_per_s peak_fp16_flop_per_s"),
    (1e6, 1e20, "AcceleratorSpec: peak_fp8_flop_per_s peak_fp4_flop_per_s peak_fp32_flop_per_s"),
    (ABOVE_0, 1e6, "AcceleratorSpec: tdp_watts"),
    (ABOVE_0, 1.5, "AcceleratorSpec: large_gemm_fraction"),
    (1, 10**7, "NetworkTier: domain_accelerators"),
    (1e4, 1e18, "NetworkTier: bandwidth_bytes_per_s"),
    (0.0, 10.0, "NetworkTier: latency_s"),
    (0.0, 1.0, "NetworkTier: collective_wait_s"),
    (1.0, 1e4, "NetworkTier: oversubscription"),
    (1, 10**6, "NodeGroup: nodes"),
    (1, 10**4, "NodeGroup: accelerators_per_node"),
    (1e6, 1e16, "NodeGroup: host_memory_bytes"),
    (1e4, 1e18, "NodeGroup: host_link_bytes_per_s nvme_bytes_per_s"),
    (0.0, 1e6, "NodeGroup: price_usd_per_accelerator_hour"),
    (ABOVE_0, 1e7, "NodeGroup: node_power_watts"),
    (0.0, 1e15, "ClusterSpec: reserved_bytes_per_accelerator"),
    (1.0, 10.0, "ClusterSpec: pue"),
    (0.0, 1e6, "ClusterSpec: failures_per_1000_node_days"),
    (1, 10**8, "TrainingSpec: seq_length global_batch_size encoder_tokens"),
    (ABOVE_0, 1e18, "TrainingSpec: tokens"),
    (0, 10**5, "TrainingSpec: lora_rank"),
    (1e6, 1e15, "TrainingSpec: teacher_parameters"),
    (0.0, BELOW_1, "TrainingSpec: lora_dropout"),
    (1, 10**6, "ParallelPlan: tp cp pp vpp dp ep etp micro_batch_size"),
    (0, 10**6, "ParallelPlan: dp_shard"),
    (0, 3, "ParallelPlan: zero_stage"),
    (
        0,
        10**4,
        "ParallelPlan: recompute_num_layers first_stage_layers last_stage_layers "
        "offload_num_layers",
    ),
]
NUMBERS = {
    (document.split(":")[0], name): (least, most)
    for least, most, document in BOUNDS
    for name in document.split(": ")[1].split()
}
# What a document that leaves a field out means, where it is not nothing: 0, false, none or empty.
DEFAULTS: dict[str, dict[str, Any]] = {
    "MoESpec": {"layer_frequency": 1, "imbalance_factor": 1.0},
    "ModelSpec": {
        "name": "custom", "norm": "layernorm", "norms_per_layer": 2, "qk_norm": "none",
        "position": "rope", "final_norm": True, "residual_streams": 1,
        "numerics": Numerics(),
    },
    "EncoderSpec": {
        "name": "vision", "norm": "layernorm", "norms_per_layer": 2, "qk_norm": "none",
        "position": "rope", "final_norm": True, "residual_streams": 1, "merge": 1,
    },
    "Attention": {"kind": "attention", "key_values": "own", "gate": "none", "rope": True},
    "CompressedAttention": {"kind": "compressed_attention"},
    "CrossAttention": {"kind": "cross_attention"},
    "Experts": {"kind": "experts"},
    "GatedDeltaNet": {"kind": "gated_delta_net", "convolution": 4, "gated": True},
    "LatentAttention": {"kind": "latent_attention", "gate": "none"},
    "LightningAttention": {"kind": "lightning_attention", "gate": True, "output_norm": "all"},
    "LinearRecurrentUnit": {"kind": "linear_recurrent_unit", "convolution": 4},
    "Mamba": {"kind": "mamba", "convolution": 4, "convolution_bias": True},
    "Mamba2": {
        "kind": "mamba2", "num_groups": 1, "convolution": 4, "convolution_bias": True,
        "gated_norm": True, "chunk_size": 128,
    },
    "MLP": {"kind": "mlp"},
    "Parallel": {"kind": "parallel"},
    "PerLayerInput": {"kind": "per_layer_input"},
    "Products": {"kind": "products"},
    "ChannelMix": {"kind": "rwkv_channel_mix"},
    "TimeMix": {"kind": "rwkv_time_mix"},
    "ShortConvolution": {"kind": "short_convolution", "taps": 3},
    "Indexer": {"key_norm_bias": True, "head_weights": True},
    "Product": {"times": 1},
    "AcceleratorSpec": {"confidence": "user"},
    "NetworkTier": {"oversubscription": 1.0, "topology": "switch"},
    "ClusterSpec": {"name": "custom", "pue": 1.25},
    "TrainingSpec": {
        "precision": "bf16", "fp8_recipe": "tensorwise", "gradient_dtype": "fp32",
        "gradient_reduce_dtype": "fp32", "master_weights_dtype": "fp32",
        "optimizer_state_dtype": "fp32", "optimizer": "adam", "frozen_dtype": "as trained",
        "packing": "packed", "loss": "next_token",
        "lora_targets": ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
    },
    "ParallelPlan": {
        **dict.fromkeys(("tp", "cp", "pp", "vpp", "dp", "ep", "etp", "micro_batch_size"), 1),
        "zero_stage": 1, "reshard_after_forward": True, "cp_kind": "p2p", "recompute": "none",
        "recompute_method": "block", "schedule": "1f1b", "rank_order": "tp-cp-ep-dp-pp",
        "attention_kernel": "flash", "cross_entropy": "fused", "moe_dispatcher": "alltoall",
        "overlap_grad_reduce": True, "overlap_param_gather": True, "overlap_p2p": True,
        "runtime": "megatron",
    },
}  # fmt: skip


def accepts(document: type[Spec], name: str, value: Any) -> bool:
    """Whether the field alone takes the value."""
    field = document.model_fields[name]
    adapter: TypeAdapter[Any] = TypeAdapter(Annotated[field.annotation, *field.metadata, name])
    try:
        return bool(adapter.validate_python(value) == value)
    except ValidationError:
        return False


def numeric(document: type[Spec]) -> set[str]:
    """The fields that hold a number, or nothing."""
    found = {name: str(field.annotation) for name, field in document.model_fields.items()}
    return {name for name, kind in found.items() if re.search(r"\b(int|float)\b", kind)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.__name__)
def test_numbers_are_bounded(document: type[Spec]) -> None:
    own = {name: both for (owner, name), both in NUMBERS.items() if owner == document.__name__}
    assert set(own) == numeric(document) - {"stage_layers", "recompute_layers", "sample_lengths"}
    for name, (least, most) in own.items():
        assert accepts(document, name, least), name
        assert accepts(document, name, most), name
        step = 1 if isinstance(least, int) else max(1e-9 * least, 1e-300)
        assert not accepts(document, name, least - step), name
        assert not accepts(document, name, most + (1 if isinstance(most, int) else most)), name
    excluded = {name for name, (least, _) in own.items() if least == ABOVE_0}
    assert not any(accepts(document, name, 0.0) for name in excluded)
    assert not any(accepts(document, name, 1.0) for name, (_, most) in own.items() if most < 1)


def test_lists_and_names_are_bounded() -> None:
    assert accepts(ParallelPlan, "stage_layers", (0,) * 4095 + (10**4,))
    for layers in ((0,) * 4097, (-1,), (10**4 + 1,)):
        assert not accepts(ParallelPlan, "stage_layers", layers)
    assert accepts(ModelSpec, "layer_pattern", ((Attention(),),) * 10**4)
    assert not accepts(ModelSpec, "layer_pattern", ((Attention(),),) * (10**4 + 1))
    assert not accepts(ModelSpec, "layer_pattern", ((Attention(),) * 65,))
    tier = NetworkTier(name="switch", bandwidth_bytes_per_s=1e9, latency_s=0.0)
    part = AcceleratorSpec(id="a", name="A", memory_bytes=1e9, memory_bytes_per_s=1e9)
    group = NodeGroup(accelerator=part, nodes=1, accelerators_per_node=1, network=(tier,))
    for document, name, item, most in (
        (NodeGroup, "network", tier, 6),
        (ClusterSpec, "groups", group, 16),
    ):
        assert accepts(document, name, (item,) * most)
        assert not accepts(document, name, (item,) * (most + 1))
        assert not accepts(document, name, ())
    assert accepts(ModelSpec, "name", "n")
    assert accepts(ModelSpec, "name", "n" * 200)
    for name in ("", "n" * 201, "a\nb", "a\x7fb", "a\x9fb", "a\u2028b"):
        assert not accepts(ModelSpec, "name", name)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.__name__)
def test_what_a_document_leaves_out_is_nothing_or_the_usual(document: type[Spec]) -> None:
    left_out = {
        name: field.default
        for name, field in document.model_fields.items()
        if not field.is_required() and field.default
    }
    assert left_out == DEFAULTS.get(document.__name__, {})


def test_numbers_are_finite_and_documents_closed_and_frozen() -> None:
    asked = {"seq_length": 1, "global_batch_size": 1}
    for more in ({"tokens": float("inf")}, {"tokens": float("nan")}, {"sequence": 1}):
        with pytest.raises(ValidationError):
            TrainingSpec.model_validate(asked | more)
    training = TrainingSpec.model_validate(asked)
    with pytest.raises(ValidationError):
        training.seq_length = 2  # type: ignore[misc]


def test_a_copy_derives_its_values_anew() -> None:
    model = ModelSpec(num_layers=4, hidden_size=64, num_attention_heads=4, vocab_size=100)
    assert model.feed_forwards == ("dense",) * 4
    routed = MoESpec(num_experts=4, top_k=1, expert_ffn_hidden_size=8, num_dense_layers=1)
    copied = model.model_copy(update={"moe": routed})
    assert copied.feed_forwards == ("dense", "moe", "moe", "moe")
    assert model.feed_forwards == ("dense",) * 4


@pytest.mark.parametrize(
    ("changes", "weight", "gathered", "master", "states"),
    [
        ({}, 2, 2, 4, 12),
        ({"precision": "fp32"}, 4, 4, 0, 8),
        ({"precision": "fp16", "optimizer": "sgd"}, 2, 2, 4, 8),
        ({"precision": "fp8"}, 2, 2, 4, 12),
        ({"precision": "fp8", "fp8_param_gather": True}, 2, 1, 4, 12),
        ({"precision": "bf16", "fp8_param_gather": True}, 2, 2, 4, 12),
        ({"master_weights_dtype": "none"}, 2, 2, 0, 8),
        ({"optimizer_state_dtype": "bf16"}, 2, 2, 4, 8),
        ({"optimizer_state_dtype": "fp8", "master_weights_dtype": "none"}, 2, 2, 0, 2),
    ],
)
def test_bytes_of_a_parameter(
    changes: dict[str, Any], weight: int, gathered: int, master: int, states: int
) -> None:
    """Adam has two moments of 4 bytes each and SGD one; the master copy is 4 bytes or none."""
    training = TrainingSpec(seq_length=4096, global_batch_size=8, **changes)
    assert (training.weight_bytes, training.activation_bytes) == (weight, weight)
    assert training.gathered_weight_bytes == gathered
    assert training.master_weight_bytes == master
    assert training.optimizer_bytes_per_parameter == states
    assert training.tokens_per_iteration == 4096 * 8


MODEL = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
ROUTED = {"num_experts": 8, "top_k": 2, "expert_ffn_hidden_size": 8}


def test_widths_follow_from_others() -> None:
    model = ModelSpec.model_validate(MODEL)
    assert (model.num_query_groups, model.head_dim, model.ffn_hidden_size) == (4, 16, 256)
    assert model.norm_bias
    assert not ModelSpec.model_validate(MODEL | {"norm": "rmsnorm"}).norm_bias
    given = {"num_query_groups": 2, "head_dim": 8, "ffn_hidden_size": 100, "norm_bias": False}
    kept = ModelSpec.model_validate(MODEL | given)
    assert {name: getattr(kept, name) for name in given} == given


@pytest.mark.parametrize(
    ("moe", "kinds"),
    [
        ({}, "mmmm"),
        ({"num_dense_layers": 1}, "dmmm"),
        ({"num_dense_layers": 3}, "dddm"),
        ({"layer_frequency": 2}, "mdmd"),
        ({"layer_frequency": 2, "layer_offset": 1}, "dmdm"),
        ({"layer_frequency": 3}, "mddm"),
        ({"layer_frequency": 3, "layer_offset": 2}, "ddmd"),
        ({"layer_frequency": 2, "num_dense_layers": 1}, "ddmd"),
    ],
)
def test_which_layers_are_routed(moe: dict[str, int], kinds: str) -> None:
    model = ModelSpec.model_validate(MODEL | {"moe": ROUTED | moe})
    assert "".join(kind[0] for kind in model.feed_forwards) == kinds


@pytest.mark.parametrize(
    ("changes", "bad"),
    [
        ({"top_k": 8}, False),
        ({"top_k": 9}, True),
        ({"num_groups": 4, "top_k_groups": 4}, False),
        ({"num_groups": 4, "top_k_groups": 5}, True),
        ({"num_groups": 3, "top_k_groups": 1}, True),
        ({"num_groups": 4}, True),
        ({"top_k_groups": 4}, True),
    ],
)
def test_routing_is_consistent(changes: dict[str, int], bad: bool) -> None:
    if bad:
        with pytest.raises(ValidationError):
            MoESpec.model_validate(ROUTED | changes)
    else:
        MoESpec.model_validate(ROUTED | changes)


@pytest.mark.parametrize(
    ("changes", "bad"),
    [
        ({"num_query_groups": 3}, True),
        ({"position": "learned"}, True),
        ({"position": "learned", "max_position_embeddings": 128}, False),
        ({"norm": "rmsnorm", "norm_bias": True}, True),
        ({"full_attention_period": 2}, True),
        ({"full_attention_period": 2, "sliding_window": 8}, False),
        ({"layer_pattern": ((Attention(),),) * 4}, False),
        ({"layer_pattern": ((Attention(),),) * 5}, True),
        ({"layer_pattern": ((Attention(),),), "sliding_window": 8}, True),
        ({"layer_pattern": (({"kind": "latent_attention"},),)}, True),
        ({"layer_pattern": (({"kind": "experts"},),)}, True),
        ({"layer_pattern": ((),)}, True),
        ({"layer_pattern": ((Attention(window=8, chunk=8),),)}, True),
        ({"layer_pattern": ((Attention(num_attention_heads=4, num_query_groups=3),),)}, True),
        ({"moe": ROUTED | {"num_dense_layers": 4}}, True),
        ({"num_attention_heads": 5}, True),
        ({"num_attention_heads": 5, "head_dim": 16}, False),
    ],
)
def test_models_are_consistent(changes: dict[str, Any], bad: bool) -> None:
    if bad:
        with pytest.raises(ValidationError):
            ModelSpec.model_validate(MODEL | changes)
    else:
        ModelSpec.model_validate(MODEL | changes)


@pytest.mark.parametrize(
    ("domains", "bad"),
    [
        ((4, 8), False),
        ((4, 8, None), False),
        ((None,), False),
        ((4, 4), True),
        ((8, 4), True),
        ((4, 6), True),
        ((None, 8), True),
        ((4, None, 8), True),
    ],
)
def test_tiers_hold_whole_domains(domains: tuple[int | None, ...], bad: bool) -> None:
    part = AcceleratorSpec(id="a", name="A", memory_bytes=1e9, memory_bytes_per_s=1e9)
    tiers = tuple(
        NetworkTier(name="t", domain_accelerators=n, bandwidth_bytes_per_s=1e9, latency_s=0.0)
        for n in domains
    )
    group = {"accelerator": part, "nodes": 3, "accelerators_per_node": 4, "network": tiers}
    if bad:
        with pytest.raises(ValidationError):
            NodeGroup.model_validate(group)
    else:
        assert NodeGroup.model_validate(group).accelerators == 12


def test_a_cluster_has_at_most_a_million_accelerators() -> None:
    part = AcceleratorSpec(id="a", name="A", memory_bytes=1e9, memory_bytes_per_s=1e9)
    tier = NetworkTier(name="t", bandwidth_bytes_per_s=1e9, latency_s=0.0)

    def cluster(nodes: int) -> ClusterSpec:
        group = NodeGroup(accelerator=part, nodes=nodes, accelerators_per_node=2, network=(tier,))
        return ClusterSpec(groups=(group, group))

    assert cluster(250_000).accelerators == 10**6
    with pytest.raises(ValidationError):
        cluster(250_001)
