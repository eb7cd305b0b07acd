"""Every trait of a runtime by what it changes: bytes and seconds worked out by hand.

Each case has the runtimes on both sides of a trait.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_models.runtimes.base import TRAITS
from tests.fixtures.ideal import BANDWIDTH, CONSTANTS, LINK, RATE, estimate, machine
from tests.fixtures.traits import (
    BATCH,
    COPIES,
    EXPERTS,
    FP8,
    GPT,
    GROUPS,
    HALF_SUM,
    HEADS,
    LATENT,
    LAYER,
    LAYERS,
    LLAMA,
    LOSS,
    MESSAGE,
    MIB,
    MLA,
    MOE,
    NOPE,
    OPEN,
    ROPE,
    SCAN,
    SP,
    TRAINING,
    WEIGHTS,
    WIDTH,
    Case,
    D,
    F,
    H,
    S,
    V,
    constant_collectives,
    gathered_again,
    kernel,
    legal,
    measured_wrapper,
    named,
    part,
    saved_by_layer,
    slow_memory,
    working,
)  # fmt: skip

FUSED_MLP = {"recompute": "selective", "recompute_modules": ("op",)}
WHOLE = {"recompute": "full", "recompute_method": "block", "recompute_num_layers": 1}
UNFUSED_LOSS = {"cross_entropy": "unfused"}
ZERO3 = {"dp": 2, "zero_stage": 3}
# One half of a layer's attention between two context-parallel ranks.
CHUNK = S * S * H / 2 / RATE
TABLE, MATRIX = V * H, F * H
# What a step over all parameters reaches of the bandwidth.
STEP_BANDWIDTH = 0.85 * BANDWIDTH
# Grouped-query attention; three matrices and biases of each expert; router; norms.
MOE_LAYER = 2 * H * H + 2 * H * GROUPS * D + EXPERTS * (3 * WIDTH * H + 2 * WIDTH + H)
MOE_LAYER += EXPERTS * H + 2 * H
MANY = TRAINING.model_copy(update={"global_batch_size": 64})
QUANTISED = TRAINING.model_copy(update={"optimizer": "adam_8bit"})
NARROW = 1 + 4 / 256
ADAPTED = TRAINING.model_copy(update={"lora_rank": 16, "lora_targets": ("q_proj", "v_proj")})
QLORA = ADAPTED.model_copy(update={"frozen_dtype": "nf4", "lora_dropout": 0.1})
DROPPED = ADAPTED.model_copy(update={"lora_dropout": 0.1})
WORDS = GPT.model_copy(update={"vocab_size": 2 * V})
TWICE = GPT.model_copy(update={"num_layers": 2 * LAYERS})
# Both matrices of the adapters of queries and values.
RANKS = 2 * 16 * 2 * H
MUON = TRAINING.model_copy(update={"optimizer": "muon"})
WIDE = GPT.model_copy(update={"hidden_size": 16384, "head_dim": 1024, "ffn_hidden_size": 4 * 16384})
SAVED = S * (2 * 2 * H + 2 * 2 * H + 2 * 3 * H + 4 * HEADS + 2 * H + 2 * 2 * F)
# Half-precision logits and the gradient of the head's input twice.
AT_LOSS = 2 * S * V + 2 * 2 * S * H
TRANSIENT = LAYERS * SAVED + 2 * 2 * S * H + 4 * S * V + 32 * MIB + AT_LOSS
# A compiled layer without its last product.
AGAIN = (2 * S * (4 * H * H + F * H) + 2 * S * S * H) / RATE
AGAIN += (S * H * (2 * (2 + 2) + 2 * 2 + 2 * (2 + 2)) + S * F * (2 + 2)) / BANDWIDTH
SLOW_HOST = {"host_link_bytes_per_s": 1e6}


def offload_s(saved: float, runtime: str) -> float:
    """Seconds of a step in which what each layer saves goes over a slow link and comes back, less
    the passes above it.
    """
    parts = estimate(GPT, TRAINING, runtime=runtime, compile=runtime != "megatron").time_parts_s
    passes = float(parts["forward"][0] + parts["backward"][0])
    return BATCH * 2 * LAYERS * saved / 1e6 - passes


CASES: dict[str, Case] = {
    # Kernels: bytes that one reads and writes, and seconds.
    "eager_operators": Case(
        # RMSNorm in fp32: cast, square, mean, scale, cast back, times the weight.
        named("attention norm", "forward_bytes", LLAMA),
        {
            "torch": S * H * ((2 + 4) + (4 + 4) + 4 + (4 + 4) + (4 + 2) + (2 + 2)),
            "megatron": S * H * (2 + 2),
        },
    ),
    "fuses_layer_kernels": Case(
        named("attention norm", "forward_bytes", LLAMA, ADAPTED),
        {
            "transformers": S * H * ((2 + 4) + (4 + 4) + 4 + (4 + 4) + (4 + 2) + (2 + 2)),
            "unsloth": S * H * (2 + 2),
        },
    ),
    "eager_activation": Case(
        # SiLU, then the product; fused both at once.
        named("activation", "forward_bytes", LLAMA),
        {"nanotron": S * F * ((2 + 2) + (2 + 2 + 2)), "megatron": S * F * (2 + 2 + 2)},
    ),
    "joins_qkv_gradients": Case(
        named("qkv split", "backward_bytes"),
        {"megatron-2022": S * 3 * H * (2 + 2), "megatron": 0},
    ),
    "repeats_key_value_heads": Case(
        # Both are written for every query head.
        named("repeat kv", "forward_bytes", LLAMA),
        {"torch": 2 * 2 * S * H, "megatron": 0},
    ),
    "fused_accumulation": Case(
        # Input and gradient are read, the fp32 buffer read and written; or half precision written.
        kernel("fc2", "weight_gradient_s", profile=slow_memory()),
        {
            "megatron": 1e3 * (2 * S * F + 2 * S * H + (4 + 4) * F * H) / BANDWIDTH,
            "torch": 1e3 * (2 * S * F + 2 * S * H + 2 * F * H) / BANDWIDTH,
        },
    ),
    "accumulates_apart": Case(
        kernel("fc2", "weight_gradient_s"),
        {
            "deepspeed": 2 * S * F * H / 0.96 / RATE + (2 + 4 + 4) * F * H / BANDWIDTH,
            "torch": 2 * S * F * H / 0.96 / RATE,
        },
    ),
    "autocasts": Case(
        # Keys and values have copies of their own.
        named("qkv input casts", "kept", LLAMA),
        {"transformers": 2 * 2 * S * H, "torch": 0},
    ),
    "casts_adapters": Case(
        named("qkv adapter input", "kept", GPT, TRAINING.model_copy(update={"lora_rank": 16})),
        {"transformers": 2 * S * H, "torch": 0},
    ),
    "fuses_adapters": Case(
        # Queries and values: what is there is read once more, or scaled and added in two passes.
        named("qkv adapter sum", "forward_bytes", GPT, ADAPTED),
        {"unsloth": 2 * S * 2 * H, "transformers": ((2 + 2) + (2 + 2 + 2)) * S * 2 * H},
    ),
    "serial_collectives": Case(
        # Two sums a layer in each pass, of which those of the backward pass can hide.
        part("tp_comm", tp=2),
        {
            "megatron": BATCH * ((2 * LAYERS + 2) * 2 * HALF_SUM + LOSS),
            "megatron-sync": BATCH * ((4 * LAYERS + 2) * 2 * HALF_SUM + LOSS),
        },
    ),
    "overlaps_own_shard": Case(
        # A layer shows the scatters of its forward pass and, of the gather before the output
        # projection's input gradient, what its own half does not hide; else one half of each.
        part("tp_comm", **SP, overlap_tp=True),
        {
            "nanotron": BATCH
            * (LAYERS * (3 * HALF_SUM - S * H * H / 2 / RATE) + 4 * HALF_SUM + LOSS),
            "torch": BATCH * ((4 * LAYERS + 4) * (HALF_SUM + 2 * MESSAGE / BANDWIDTH) + LOSS),
        },
    ),
    "copies_around_collectives": Case(
        # Two gathers and two scatters a layer in each pass; each tensor is read and written.
        # Megatron gathers both inputs once more.
        part("tp_comm", **SP),
        {
            "torch": BATCH * ((8 * LAYERS + 4) * (HALF_SUM + 2 * MESSAGE / BANDWIDTH) + LOSS),
            "megatron-sync": BATCH * ((10 * LAYERS + 4) * HALF_SUM + LOSS),
        },
    ),
    "gathers_context_under_chunks": Case(
        part("cp_comm", cp=2, cp_kind="all_gather"),
        {  # Keys and values in both passes, and their gradients scattered.
            "megatron": BATCH * LAYERS * 3 * MESSAGE / LINK,
            # Two gathers, each under a chunk (1 forward, 2.5 backward); of two hops of fp32
            # gradients one under another; then merged as in a ring.
            "torch": BATCH
            * LAYERS
            * (
                2 * MESSAGE / LINK
                - 3.5 * CHUNK
                + 2 * 2 * MESSAGE / LINK
                - 2.5 * CHUNK
                + (38 + 3 * 18) * S / 2 * H / BANDWIDTH
            ),
        },
    ),
    "passes_recurrent_states": Case(
        named("scan", "tokens", SCAN, cp=2, cp_kind="a2a"), {"torch": S / 2, "megatron": S}
    ),
    "merges_context_in_fp32": Case(
        # Of three hops 3.5 chunks hide.  torch casts, subtracts, multiplies, subtracts in fp32, and
        # casts and adds three gradients; Transformer Engine rescales at once and adds halves.
        part("cp_comm", cp=2),
        {
            "torch": BATCH
            * LAYERS
            * (
                3 * MESSAGE / LINK
                - 3.5 * CHUNK
                + S
                / 2
                * H
                / BANDWIDTH
                * ((2 + 4) + (4 + 4 + 4) + (4 + 4) + (4 + 4 + 4) + 3 * ((2 + 4) + (4 + 4 + 4)))
            ),
            "megatron": BATCH
            * LAYERS
            * (
                3 * MESSAGE / LINK
                - 3.5 * CHUNK
                + S / 2 * H / BANDWIDTH * ((2 + 4 + 4) + 3 * (2 + 2 + 2))
            ),
        },
    ),
    "sums_adapters_with_matrices": Case(
        # Megatron splits the projection to the rank over both ranks and gathers it.
        named("fc1 adapter down", "n", GPT, TRAINING.model_copy(update={"lora_rank": 16}), tp=2),
        {"torch": 16, "megatron": 8},
    ),
    "cast_forward_bytes": Case(
        # Read, and written as it stands and transposed; or read twice, and written once.
        kernel("fc2", "forward_s", GPT, FP8),
        {
            "megatron": 2 * S * F * H / RATE + (2 + 1 + 1) * S * F / BANDWIDTH,
            "torch": 2 * S * F * H / RATE + (2 + 2 + 1) * S * F / BANDWIDTH,
        },
    ),
    "cast_backward_bytes": Case(
        # Of frozen weights only the gradient of the output is cast; torch transposes it apart.
        kernel("fc2", "backward_s", GPT, FP8.model_copy(update={"frozen": ("feed_forwards",)})),
        {
            "megatron": 2 * S * F * H / RATE + (2 + 1 + 1) * S * H / BANDWIDTH,
            "torch": 2 * S * F * H / RATE + (2 + 2 + 1 + 2 + 1) * S * H / BANDWIDTH,
        },
    ),
    "recast_bytes": Case(
        kernel("fc2", "backward_s", GPT, FP8),
        {
            "megatron": 2 * S * F * H * (1 + 1 / 0.96) / RATE + 4 * S * H / BANDWIDTH,
            "torch": 2 * S * F * H * (1 + 1 / 0.96) / RATE
            + (8 * S * H + (2 + 1) * S * F) / BANDWIDTH,
        },
    ),
    "replays_graphs": Case(
        # Eleven kernels a layer, one in the embedding, three in the head, a second each.
        lambda r: round(part("forward", constants=replace(CONSTANTS, host_launch_s=1.0))(r)),
        {"megatron-2026": BATCH * (11 * LAYERS + 1 + 3), "megatron-graphs": 0},
    ),
    "rotates_while_joining": Case(
        # Queries, keys and values are read and written once; or rotated parts of queries in place,
        # projections read, keys and values written.
        named("mla join", "forward_bytes", MLA),
        {
            "megatron": S * HEADS * (2 + 2) * (2 * (NOPE + ROPE) + NOPE),
            "megatron-2026": S
            * HEADS
            * ((2 + 2) * ROPE + 2 * (NOPE + NOPE) + 2 * (NOPE + ROPE) + 2 * NOPE),
        },
    ),
    "fuses_expert_activation": Case(
        named("expert activation", "forward_bytes", MOE),
        {"megatron": (2 + 2 + 2) * S * COPIES * WIDTH, "megatron-graphs": 0},
    ),
    "calls_one_expert_plainly": Case(
        # One expert on each rank, and grouped products at half of the rate.
        kernel(
            "expert fc2",
            "forward_s",
            MOE,
            dp=EXPERTS,
            ep=EXPERTS,
            profile=replace(machine(), grouped_gemm=(0.5, 0.5, 0.5)),
        ),
        {
            "megatron": 2 * S * COPIES * WIDTH * H / RATE,
            "torch": 2 * 2 * S * COPIES * WIDTH * H / RATE,
        },
    ),
    "ragged_tile_rows": Case(
        # Products at a fixed rate: each expert's rows, and those of the tile it shares.
        kernel(
            "expert fc2",
            "forward_s",
            MOE,
            profile=replace(machine(), grouped_gemm=(1.0, 1.0, 1.0), family="tpu"),
        ),
        {
            "torch": 2 * S * COPIES * WIDTH * H / RATE,
            "jax": 2 * (S * COPIES + EXPERTS * 512) * WIDTH * H / RATE,
        },
    ),
    "adds_expert_bias_apart": Case(
        # Weighted in fp32 (written), added, joined over experts, cast back.
        named("expert bias", "forward_bytes", MOE),
        {"megatron": S * COPIES * H * (4 + (2 + 4 + 4) + (4 + 4) + (4 + 2)), "megatron-graphs": 0},
    ),
    # Saved tensors.
    "keeps_gathered_input": Case(
        named("mlp norm output", "kept", **SP), {"torch": 2 * S * H, "megatron": 2 * S / 2 * H}
    ),
    "keeps_frozen_inputs": Case(
        # What the down projection reads; no adapter does.
        named("activation output", "kept", GPT, QLORA),
        {"litgpt": 2 * S * F, "eager": 0},
    ),
    "holds_frozen_inputs": Case(
        named("attention out input before", "kept", GPT, QLORA), {"litgpt": 2 * S * H, "eager": 0}
    ),
    "joins_adapters": Case(
        # Inputs of the adapters of queries and values.
        named("qkv adapter input", "kept", GPT, DROPPED),
        {"litgpt": 2 * S * H, "eager": 2 * 2 * S * H},
    ),
    "keeps_repeated_heads": Case(
        named("value", "kept", LLAMA), {"eager": 2 * S * H, "torch": 2 * S * GROUPS * D}
    ),
    "calls_attention_apart": Case(
        # Keys for every query head, or as compiled code makes them again of fewer.
        named("key", "kept", LLAMA, compile=True),
        {"torchtune-2024": 2 * S * H, "eager": 2 * S * GROUPS * D},
    ),
    "pads_adapters": Case(
        # Queries and values, without keys.
        named("qkv adapter outputs", "kept", GPT, DROPPED),
        {"litgpt": 2 * 2 * S * H, "eager": 0},
    ),
    "views_values": Case(named("unrotated", "kept"), {"litgpt": 2 * 2 * S * H, "eager": 0}),
    "norms_in_fp32": Case(
        # As much as four bytes are more than two.
        named(
            "attention norm input copy",
            "kept",
            LLAMA,
            TRAINING.model_copy(update={"lora_rank": 16}),
        ),
        {"transformers": 2 * S * H, "torch": 0},
    ),
    "keeps_norm_statistics": Case(
        # LayerNorm: mean and 1/deviation of each row.
        named("mlp norm statistics", "kept"),
        {"torch": (4 + 4) * S, "megatron": 0},
    ),
    "keeps_cast_inputs": Case(
        named("activation output", "kept", GPT, FP8), {"megatron": S * F, "torch": 2 * S * F}
    ),
    "unfused_attention_in_fp32": Case(
        named("softmax output", "kept", attention_kernel="unfused"),
        {"torch": 4 * HEADS * S * S, "megatron": 2 * HEADS * S * S},
    ),
    "sorts_routing": Case(
        # Scores in fp32; once, since what else is kept is the order of the copies.
        named("router scores", "kept", MOE),
        {"torch": 4 * S * EXPERTS, "megatron": 2 * 4 * S * EXPERTS},
    ),
    "weighs_inside_experts": Case(
        named("combine input", "kept", MOE), {"megatron": 0, "torch": 2 * S * COPIES * H}
    ),
    "separate_gated_matrices": Case(
        # The gradients of gate and up, and of the MLP's input, from each of two matrices.
        working(LLAMA),
        {"megatron": 2 * S * (2 * F + H), "torch": 2 * S * (2 * F + 2 * H)},
    ),
    "fused_loss_in_place": Case(
        named("logits", "kept", end="head", cross_entropy="fused"),
        {"torch": 2 * S * V, "megatron": 4 * S * V},
    ),
    "keeps_mlp_products": Case(
        # Gate, or up, of the two.
        named("fc1 output", "kept", LLAMA, **FUSED_MLP),
        {"torch": 2 * S * F, "jax": 0},
    ),
    "recompute_keeps_products": Case(
        # What queries, keys, values and the first product of the MLP wrote, and the inputs of both
        # norms; else the outputs of both norms, of attention and of the activation besides.
        saved_by_layer(recompute="selective", recompute_modules=("core_attn",)),
        {
            "jax": 2 * S * (3 * H + F + 2 * H),
            "megatron": 2 * S * (3 * H + F + 2 * H + 2 * H + H + F),
        },
    ),
    "half_precision_logits": Case(
        named("logits", "kept", end="head", **UNFUSED_LOSS), {"jax": 2 * S * V, "torch": 4 * S * V}
    ),
    "autograd_loss": Case(
        # Half-precision logits; with autograd fp32 ones and their gradient too; and the gradient of
        # the head's input twice.
        working(GPT, head=True, **UNFUSED_LOSS),
        {"megatron": 2 * S * V + 2 * 2 * S * H, "torch": (2 + 4 + 4) * S * V + 2 * 2 * S * H},
    ),
    "unfused_attention_by_operator": Case(
        named("softmax output in fp32", "kept", attention_kernel="unfused"),
        {"transformers": 4 * HEADS * S * S, "torch": 0},
    ),
    "drops_half_logits": Case(
        working(GPT, head=True, **UNFUSED_LOSS),
        {
            "transformers": (4 + 4) * S * V + 2 * 2 * S * H,
            "torch": (2 + 4 + 4) * S * V + 2 * 2 * S * H,
        },
    ),
    "keeps_chunk_logits": Case(
        # Their logarithms in fp32.
        named("chunks", "kept", end="head", cross_entropy="chunked"),
        {"eager": 4 * S * V, "transformers": 0},
    ),
    "keeps_half_chunk_logits": Case(
        named("chunks", "kept", end="head", cross_entropy="chunked"),
        {"torchtune-2024": (2 + 4) * S * V, "eager": 4 * S * V},
    ),
    "differentiates_in_loss": Case(
        # The fp32 gradient of the head beside its half-precision copy, an eighth of the logits and
        # of their gradient; or a half-precision one beside 256 tokens' logits in both types,
        # logarithms and two gradients.
        working(GPT, head=True, cross_entropy="chunked"),
        {
            "unsloth": (4 + 2) * V * H + (2 + 2) * S / 8 * V + 2 * 2 * S * H,
            "transformers": 2 * V * H + (2 + 3 * 4) * 256 * V + 2 * 2 * S * H,
        },
    ),
    "chunks_head": Case(
        # Logarithms; in fp32 two gradients of an eighth of the logits, and one in half precision.
        working(GPT, True, DROPPED, **UNFUSED_LOSS),
        {
            "litgpt": (4 + (4 + 4 + 2) / 8) * S * V + 2 * 2 * S * H,
            "transformers": (4 + 4) * S * V + 2 * 2 * S * H,
        },
    ),
    # Weights, gradients and optimizer states.
    "frees_gradients": Case(
        # Where a step is one pass, more activations go than gradients come.
        part("gradients", micro_batch_size=BATCH),
        {"torch": 0, "megatron-2022": 4 * WEIGHTS},
    ),
    "steps_by_list": Case(
        # Weight and moments twice, or by decay (8), moments (12 and 20), root, quotient and sum
        # (24) and update (16); the gradient, its norm and its clipping.
        part("optimizer"),
        {
            "torch": (24 + 16) * WEIGHTS / STEP_BANDWIDTH,
            "transformers-foreach": (80 + 16) * WEIGHTS / STEP_BANDWIDTH,
        },
    ),
    "wide_table_states": Case(
        # Two moments of a byte, with an fp32 scale of 256; those of the word table are fp32.
        lambda r: float(estimate(GPT, QUANTISED, runtime=r).memory.parts["optimizer"][0, 0]),
        {
            "torch": 2 * NARROW * WEIGHTS,
            "transformers": 2 * NARROW * WEIGHTS + 2 * (4 - NARROW) * TABLE,
        },
    ),
    "weights_are_masters": Case(part("weights"), {"torch": 4 * WEIGHTS, "nanotron": 2 * WEIGHTS}),
    "offloads_shards": Case(
        part("weights", offload_optimizer=True, node=SLOW_HOST, **ZERO3),
        {"torch": 0, "nanotron": 2 * WEIGHTS / 2},
    ),
    "keeps_half_gradients": Case(
        part("gradients"), {"deepspeed": (4 + 2) * WEIGHTS, "megatron-2022": 4 * WEIGHTS}
    ),
    "flat_gradients": Case(
        # Of the frozen weights of layers too, whole, in half precision; adapters' own are fp32, and
        # without it a half of them.
        part("gradients", GPT, ADAPTED, **ZERO3),
        {
            "litgpt": 4 * LAYERS * RANKS + 2 * LAYERS * LAYER,
            "eager": 4 * LAYERS * RANKS / 2,
        },
    ),
    "packs_head": Case(
        # Of as many words again: table and head.
        lambda r: part("weights", WORDS, QLORA)(r) - part("weights", GPT, QLORA)(r),
        {"litgpt": (2 + 0.5 + 4 / 64) * TABLE, "eager": (2 + 2) * TABLE},
    ),
    "plain_scales": Case(
        # Of as many layers again: an fp32 scale for each 64 weights; or a byte, and one for 256.
        lambda r: part("weights", TWICE, QLORA)(r) - part("weights", GPT, QLORA)(r),
        {
            "litgpt": LAYERS * ((0.5 + 4 / 64) * LAYER + 4 * RANKS),
            "eager": LAYERS * ((0.5 + (1 + 4 / 256) / 64) * LAYER + 4 * RANKS),
        },
    ),
    "keeps_cast_weights": Case(
        # As they stand and transposed, a byte each.
        part("weights", GPT, FP8),
        {"megatron": (2 + 1 + 1) * WEIGHTS, "deepspeed": 2 * WEIGHTS},
    ),
    "placeholder_gradients": Case(
        # One of each shape: queries, keys and values; output; both of the MLP; head.
        part("gradients"),
        {
            "megatron": 4 * WEIGHTS + 2 * (3 * H * H + H * H + 2 * MATRIX + TABLE),
            "megatron-2022": 4 * WEIGHTS,
        },
    ),
    "gathers_cast_weights": Case(
        # Half of each layer's weights twice in a byte, of both ends in two; of gradients in four.
        lambda r: part("dp_comm", GPT, FP8, **ZERO3, **OPEN)(r) - copies_s(r),
        {
            "torch": BATCH
            / 2
            / 2
            / LINK
            * (LAYERS * LAYER * (2 * 1 + 4) + 2 * TABLE * (2 * 2 + 4)),
            "megatron": BATCH / 2 / 2 / LINK * (LAYERS * LAYER + 2 * TABLE) * (2 * 2 + 4),
        },
    ),
    "gathers_root_weights": Case(
        # A layer and the next, word table and head all along; gradients of a layer in fp32 and in
        # half precision, of the head in half.
        part("communication", **ZERO3),
        {
            "torch": 2 * 2 * LAYER + 2 * (2 * TABLE + 2 * H) + (4 + 2) * LAYER + 2 * TABLE,
            "megatron": 2 * 2 * LAYER + 4 * LAYER,
        },
    ),
    "gathers_by_matrix": Case(
        # The widest matrix and a layer ahead; gradients of the matrix.
        part("communication", **ZERO3),
        {"deepspeed": 2 * MATRIX + 2 * LAYER + 4 * MATRIX, "megatron": 2 * 2 * LAYER + 4 * LAYER},
    ),
    "gathers_experts_together": Case(
        # The gate of all experts; or both input matrices of one, and the layer ahead.
        part("communication", MOE, **ZERO3),
        {
            "jax": (2 * 2 + 2) * EXPERTS * WIDTH * H,
            "deepspeed": (2 + 4) * 2 * WIDTH * H + 2 * MOE_LAYER,
        },
    ),
    "gathers_next_matrix": Case(
        part("communication", **ZERO3),
        {"jax": 2 * 2 * MATRIX + 2 * MATRIX, "deepspeed": 2 * MATRIX + 2 * LAYER + 4 * MATRIX},
    ),
    "most_live_parameters": Case(
        # A layer of 3.2 billion: DeepSpeed gathers one billion ahead.
        part("communication", WIDE, **ZERO3),
        {
            "deepspeed": (2 + 4) * 4 * 16384**2 + 2 * 10**9,
            "megatron": (2 + 2 + 4) * (12 * 16384**2 + 4 * 16384),
        },
    ),
    "keeps_gathered_weights": Case(
        legal(pp=2, reshard_after_forward=False, **ZERO3), {"torch": 1, "megatron": 0}
    ),
    "reduces_after_pipeline": Case(
        # The weights of the stage; a layer's gradients in half precision, or those that are reduced
        # in fp32; messages, of which torch has one for each of four micro-batches.
        part("communication", pp=2, reshard_after_forward=False, **ZERO3),
        {
            "torch": 2 * (2 * LAYER + TABLE) + 2 * LAYER + (2 * 4 + 2) * MESSAGE,
            "megatron": 2 * (2 * LAYER + TABLE) + 4 * LAYER + 2 * MESSAGE,
        },
    ),
    "reduces_half_gradients": Case(
        # Of the widest matrix in half precision; of a layer in both, and of the head.
        part("communication", dp=2, zero_stage=2),
        {"jax": 2 * MATRIX, "torch": (4 + 2) * LAYER + 2 * TABLE},
    ),
    "reduces_by_block": Case(
        # Each collective takes a second: gradients and weights in layers, or in 40 million each.
        part("dp_comm", dp=2, zero_stage=1, profile=constant_collectives(), **OPEN),
        {"torch": 2 * WEIGHTS / LAYER, "megatron": 2 * WEIGHTS / 40e6},
    ),
    "ddp_bucket_bytes": Case(
        # Each all-reduce takes a second: of 25 MiB of fp32 weights, or of 40 million gradients.
        part("dp_comm", dp=2, zero_stage=0, profile=constant_collectives(), **OPEN),
        {"torch": 4 * WEIGHTS / (25 * MIB), "megatron": WEIGHTS / 40e6},
    ),
    "reduces_whole_bf16_gradients": Case(
        # An all-reduce sends fp32 gradients twice; then half-precision weights are gathered.
        part("dp_comm", dp=2, zero_stage=1, **OPEN),
        {"deepspeed": (2 * 4 + 2) / 2 * WEIGHTS / LINK, "megatron": (4 + 2) / 2 * WEIGHTS / LINK},
    ),
    "flat_buckets": Case(
        # All is fewer than 500 million: flat in fp32, beside it in half; weights come back in half.
        lambda r: sum(part(n, dp=2)(r) for n in ("activations", "logits", "working")),
        {"deepspeed": (4 + 2 + 2) * WEIGHTS, "megatron-2022": TRANSIENT},
    ),
    "whole_table_gradient": Case(
        # A rank holds half of the matrices and word tables; torch the gradient of a whole one.
        part("gradients", tp=2, zero_stage=0),
        {
            "torch": 4 * (WEIGHTS + LAYERS * 4 * H + 2 * H) / 2 + 4 * TABLE / 2,
            "megatron-2022": 4 * (WEIGHTS + LAYERS * 4 * H + 2 * H) / 2,
        },
    ),
    "copies_sharded_parameters": Case(
        # Weights gathered twice, gradients reduced in fp32: half over the link.  Each copy reads
        # two bytes, and writes two or four: five on average of two gathers and a reduction.
        part("dp_comm", **ZERO3, **OPEN),
        {
            "torch": BATCH
            / 2
            * (LAYERS * LAYER + 2 * TABLE)
            * ((2 * 2 + 4) / 2 / LINK + 3 * 5 / BANDWIDTH),
            "megatron": BATCH / 2 * (LAYERS * LAYER + 2 * TABLE) * (2 * 2 + 4) / 2 / LINK,
        },
    ),
    "gathers_sharded_matrices": Case(
        # Muon's momenta of every layer over two tensor-parallel ranks, in fp32 or in half.
        lambda r: part("tp_comm", GPT, MUON, tp=2)(r) - part("tp_comm", tp=2)(r),
        {
            "megatron": 4 * LAYERS * 12 * H * H / 2 / LINK,
            "torch": 2 * LAYERS * 12 * H * H / 2 / LINK,
        },
    ),
    "measured_wrapper": Case(
        # A second before each of four layers and two ends.
        lambda r: round(
            part("dp_comm", profile=measured_wrapper(), **ZERO3, **OPEN)(r)
            - BATCH / 2 * (LAYERS * LAYER + 2 * TABLE) * 4 / LINK,
            6,
        ),
        {"torch": BATCH / 2 * (LAYERS + 2), "megatron": 0},
    ),
    # Pipelines: two messages while it fills and drains, one each way per micro-batch.
    "scatters_messages": Case(
        part("pp_comm", tp=2, pp=2),
        {
            "megatron-2022": (2 + 2 * BATCH) * MESSAGE / 2 / LINK,
            "megatron": (2 + 2 * BATCH) * MESSAGE / LINK,
        },
    ),
    "messages_one_way": Case(
        part("pp_comm", pp=2),
        {
            "deepspeed": (2 + 2 * 2 * BATCH) * MESSAGE / LINK,
            "megatron": (2 + 2 * BATCH) * MESSAGE / LINK,
        },
    ),
    "keeps_sent_outputs": Case(
        # Of two micro-batches in flight.
        part("communication", pp=2),
        {"deepspeed": (2 + 2) * MESSAGE, "megatron": 2 * MESSAGE},
    ),
    "buffers_every_message": Case(
        # Beside what is kept of two in flight; torch has a layer's gradients in half precision.
        part("communication", pp=2),
        {"torch": (2 * BATCH + 2) * MESSAGE + 2 * LAYER, "nanotron": (2 + 2) * MESSAGE},
    ),
    # The allocator.
    "gemm_workspaces": Case(
        part("working"),
        {"megatron": 5 * 32 * MIB + AT_LOSS, "megatron-2022": 32 * MIB + AT_LOSS},
    ),
    "expandable_segments": Case(
        # A share of what comes and goes; in fixed segments the word table's gradient besides.
        part("fragmentation"),
        {
            "megatron-2026": 0.05 * (TRANSIENT + 4 * 32 * MIB),
            "megatron": 0.3 * (TRANSIENT + 4 * 32 * MIB) + 2 * TABLE,
        },
    ),
    "gaps_of_logits": Case(
        # Of 64 sequences: half-precision logits, what the head needs, and a GiB; else a share.
        part("fragmentation", GPT, MANY, micro_batch_size=64),
        {
            "eager": 2**30 + 64 * (2 * S * V + 2 * 2 * S * H) + 2 * TABLE,
            "megatron-2026": 0.05 * (64 * (TRANSIENT - 32 * MIB) + 5 * 32 * MIB),
        },
    ),
    "leaves_out_last_product": Case(
        # Compiled: norms read and write, sums read their second operand, rotation and GELU.
        part("recompute", compile=True, **WHOLE),
        {"torch": BATCH * (AGAIN + 2 * S * F * H / RATE), "jax": BATCH * AGAIN},
    ),
    # What the search may ask for.
    "recomputes_operators": Case(legal(**FUSED_MLP), {"torch": 1, "megatron": 0}),
    "whole_interleaved_rounds": Case(
        # Three micro-batches on two stages.
        legal(
            TRAINING.model_copy(update={"global_batch_size": 3}),
            pp=2,
            vpp=2,
            schedule="interleaved-1f1b",
        ),
        {"megatron": 0, "megatron-sync": 1},
    ),
    "needs_pp_micro_batches": Case(
        # Two micro-batches on four stages.
        legal(pp=4, micro_batch_size=4),
        {"torch": 0, "megatron": 1},
    ),
}


def copies_s(runtime: str) -> float:
    """Two gathers and a reduction of each parameter through a buffer: see copies below."""
    moved = 3 * (LAYERS * LAYER + 2 * TABLE)
    return BATCH / 2 * 5 * moved / BANDWIDTH if runtime == "torch" else 0.0


@pytest.mark.parametrize("trait", CASES)
def test_a_trait_changes_what_it_says(trait: str) -> None:
    case = CASES[trait]
    found = {runtime: case.measure(runtime) for runtime in case.expected}
    assert found == pytest.approx(case.expected, rel=1e-9)


def test_every_trait_has_a_case() -> None:
    assert list(CASES) == list(TRAITS)


HALF_ADAPTERS = TRAINING.model_copy(update={"lora_rank": 16})
ADAPTERS = FP8.model_copy(update={"lora_rank": 16})
SHARED = MOE.model_copy(
    update={"moe": MOE.moe and MOE.moe.model_copy(update={"shared_expert_ffn_hidden_size": F})}
)
BY_LAYER = GPT.model_copy(update={"per_layer_input_size": 64, "per_layer_input_vocab_size": V})


@pytest.mark.parametrize(
    "case",
    [
        # Of a sequence over two ranks, whole or a half: latents, what shared experts and the head
        # read; and what is gathered again for the gradient of a weight.
        Case(
            named("mla norm output", "kept", MLA, **SP),
            {"torch": 2 * S * LATENT, "megatron": S * LATENT},
        ),
        Case(named("shared input", "kept", SHARED, **SP), {"torch": 2 * S * H, "megatron": 0}),
        Case(
            named("last norm output", "kept", end="head", **SP),
            {"torch": 2 * S * H, "megatron": S * H},
        ),
        Case(gathered_again, {"torch": 0, "megatron": S * H}),
        # The norm of each layer's own input, after the embedding.
        Case(
            named("per-layer norm statistics", "kept", BY_LAYER, end="embedding"),
            {"torch": 4 * S * LAYERS, "megatron": 0},
        ),
        # What was cast of frozen weights and of adapters of rank 16: a byte each way.
        Case(
            lambda r: part("weights", GPT, ADAPTERS)(r) - part("weights", GPT, HALF_ADAPTERS)(r),
            {
                "megatron": (1 + 1) * LAYERS * (LAYER + 16 * (4 * H + 2 * H + 2 * (H + F))),
                "deepspeed": 0,
            },
        ),
    ],
)
def test_a_trait_holds_wherever_it_matters(case: Case) -> None:
    found = {runtime: case.measure(runtime) for runtime in case.expected}
    assert found == pytest.approx(case.expected, rel=1e-9)
