"""Rules on the batch, sharding, recompute and offload of a whole plan."""

from __future__ import annotations

import numpy as np

from cost_models.optimizers import OPTIMIZERS
from cost_models.plans import RECOMPUTE_MODULES, ParallelPlan, Plans, code, is_one_of
from cost_models.runtimes import RUNTIMES, traits
from cost_models.spec import ModelSpec
from planner.constraints.rule import BoolArray, Context, Rule, divides, samples


def _batch(c: Context, p: Plans) -> BoolArray:
    return divides(p.dp * p.micro_batch_size, samples(c, p))


def _dynamic(c: Context, p: Plans) -> BoolArray:
    """Dynamic context parallelism: passes of one sample each, on powers of two of ranks."""
    ranks = p.dp * p.cp
    legal = (p.pp == 1) & (p.ep == 1) & (p.micro_batch_size == 1) & (ranks & (ranks - 1) == 0)
    tokens = not c.model.encoders and c.training.loss == "next_token"
    padded = bool(c.training.sample_lengths) and not c.training.packs
    return np.asarray((p.dynamic_cp == 0) | (p.cp == 1) | (legal & tokens & (not padded)))


def _dynamic_text(c: Context, p: ParallelPlan) -> str:
    return (
        "dynamic_cp needs packed samples of tokens and their loss, a power of two of dp x cp "
        "ranks, and pp, ep and micro_batch_size 1: a rank runs one sample after the other, as many "
        f"as fall to it; got pp {p.pp}, ep {p.ep}, micro_batch_size {p.micro_batch_size}, "
        f"dp x cp {p.dp * p.cp}"
    )


def _zero(c: Context, p: Plans) -> BoolArray:
    sharded = p.dp * p.cp
    divided = (p.dp_shard == 0) | divides(p.dp_shard, sharded)
    if c.model.moe is not None:
        # Hybrid sharding also replicates the experts dp x cp / dp_shard times.
        experts = p.tp * sharded // np.maximum(p.etp * p.ep, 1)
        copies = sharded // np.maximum(p.dp_shard, 1)
        divided &= (p.dp_shard == 0) | divides(copies, experts)
    # FSDP under a pipeline must keep its gathered weights between micro-batches (torch).
    keeps = np.asarray(traits(p.runtime).keeps_gathered_weights) > 0
    piped = (p.pp == 1) | (p.zero_stage < 2) | (keeps & (p.reshard_after_forward == 0))
    return np.asarray(divided & piped)


def _zero_text(c: Context, p: ParallelPlan) -> str:
    if p.dp_shard and (p.dp * p.cp) % p.dp_shard:
        return f"dp_shard {p.dp_shard} does not divide dp x cp = {p.dp * p.cp}"
    if p.dp_shard and c.model.moe is not None:
        experts, copies = p.tp * p.dp * p.cp // (p.etp * p.ep), p.dp * p.cp // p.dp_shard
        if experts % copies:
            return (
                f"the {copies} replicas of dp_shard {p.dp_shard} do not divide the {experts} "
                + ("ranks that hold the same experts")
            )
    keeps = RUNTIMES[p.runtime].keeps_gathered_weights
    return f"zero_stage {p.zero_stage} with pp {p.pp} on the {p.runtime} runtime" + (
        " needs reshard_after_forward false" if keeps else " is not possible"
    )


def _recompute(c: Context, p: Plans) -> BoolArray:
    bits = p.recompute_modules
    allowed = sum(
        1 << i for i, module in enumerate(RECOMPUTE_MODULES) if _module_exists(c.model, module)
    )
    legal = (bits & ~allowed) == 0
    full = p.recompute == code("recompute", "full")
    legal &= ~full | (p.recompute_num_layers <= c.model.num_layers)
    # What per-operator recompute keeps is torch's rule, and it is all or nothing.
    operators = 1 << RECOMPUTE_MODULES.index("op")
    by_operator = np.asarray(traits(p.runtime).recomputes_operators) > 0
    legal &= ((bits & operators) == 0) | (by_operator & (bits == operators))
    unfused = p.attention_kernel == code("attention_kernel", "unfused")
    return np.asarray(legal & ~(unfused & (p.cp > 1)))


def _module_exists(model: ModelSpec, module: str) -> bool:
    if module == "mlp":
        return "dense" in model.feed_forwards
    if module == "mla_up_proj":
        return model.mla is not None
    if module == "shared_experts":
        return model.moe is not None and model.moe.shared_expert_ffn_hidden_size > 0
    if module in ("moe", "moe_act"):
        return model.moe is not None
    return True


def _recompute_text(c: Context, p: ParallelPlan) -> str:
    missing = [m for m in p.recompute_modules if not _module_exists(c.model, m)]
    if missing:
        return f"{c.model.name} has no {', '.join(missing)} to recompute"
    by_operator = RUNTIMES[p.runtime].recomputes_operators
    if "op" in p.recompute_modules and (not by_operator or len(p.recompute_modules) > 1):
        able = ", ".join(name for name, runtime in RUNTIMES.items() if runtime.recomputes_operators)
        return f"recompute_modules op stands alone and on runtime {able} only, not {p.runtime}"
    if p.recompute_num_layers > c.model.num_layers:
        return f"recompute_num_layers {p.recompute_num_layers} of {c.model.num_layers} layers"
    return f"unfused attention cannot split the sequence over cp {p.cp}"


def _offload(c: Context, p: Plans) -> BoolArray:
    group = c.cluster.groups[0]
    stays = not OPTIMIZERS[c.training.optimizer].paged
    legal = (p.offload_optimizer == 0) & (p.offload_activations == 0) & stays
    return np.asarray(legal | (group.host_link_bytes_per_s is not None))


def _offloaded_layers(c: Context, p: Plans) -> BoolArray:
    legal = (p.offload_activations > 0) & (p.offload_num_layers <= c.model.num_layers)
    return np.asarray((p.offload_num_layers == 0) | legal)


def _offloads_elementwise(c: Context, p: Plans) -> BoolArray:
    return np.asarray((p.offload_optimizer == 0) | (not OPTIMIZERS[c.training.optimizer].by_matrix))


def _steps_in_backward(c: Context, p: Plans) -> BoolArray:
    """Gradients that are freed at once can't wait for others: of samples, or of replicas."""
    once = samples(c, p) == p.dp * p.micro_batch_size
    reduced = (p.dp * p.cp == 1) | (p.zero_stage == 3)
    legal = once & reduced & (p.pp == 1) & (p.offload_optimizer == 0)
    return np.asarray(legal | (not c.training.optimizer_in_backward))


def _chunked_loss(c: Context, p: Plans) -> BoolArray:
    """Chunks need a loss that autograd runs with the output layer, whole on each rank."""
    chunked = is_one_of(p.cross_entropy, "cross_entropy", "chunked", "liger") > 0
    able = (np.asarray(traits(p.runtime).autograd_loss) > 0) & (p.tp == 1)
    return np.asarray(~chunked | able)


BATCH = Rule(
    "batch_identity",
    _batch,
    lambda c, p: (
        f"global_batch_size {c.training.global_batch_size} is not a multiple of "
        f"dp {p.dp} x micro_batch_size {p.micro_batch_size}"
    ),
)
DYNAMIC_CP = Rule("cp_seq", _dynamic, _dynamic_text)
ZERO = Rule("zero_stage", _zero, _zero_text)
RECOMPUTE = Rule("recompute", _recompute, _recompute_text)
OFFLOAD = Rule(
    "offload", _offload, lambda c, p: "offload needs host_link_bytes_per_s in the cluster"
)
STEPS_IN_BACKWARD = Rule(
    "optimizer_in_backward",
    _steps_in_backward,
    lambda c, p: (
        "optimizer_in_backward needs one micro-batch, pp 1, the optimizer on the device, and one "
        f"rank or ZeRO 3; got {c.training.global_batch_size // (p.dp * p.micro_batch_size)} "
        f"micro-batches, pp {p.pp}, {p.dp * p.cp} ranks, ZeRO {p.zero_stage}"
    ),
)
CHUNKED_LOSS = Rule(
    "cross_entropy",
    _chunked_loss,
    lambda c, p: (
        f"cross_entropy {p.cross_entropy} runs on runtime "
        + ", ".join(name for name, runtime in RUNTIMES.items() if runtime.autograd_loss)
        + f" only, with tp 1; got {p.runtime} with tp {p.tp}"
    ),
)
OFFLOADED_LAYERS = Rule(
    "offload",
    _offloaded_layers,
    lambda c, p: (
        f"offload_num_layers {p.offload_num_layers} needs offload_activations, and at most "
        f"{c.model.num_layers} layers"
    ),
)
OFFLOADS_ELEMENTWISE = Rule(
    "offload",
    _offloads_elementwise,
    lambda c, p: (
        f"{OPTIMIZERS[c.training.optimizer].title} needs whole matrices: no step on the host"
    ),
)
