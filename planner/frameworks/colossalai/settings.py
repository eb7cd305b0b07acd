"""Arguments of the plugin, constants of train.py and keys of config.json, with reasons.

A setting is a Flag whose name is `where.argument` and whose value is Python source.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from cost_models.plans import ParallelPlan
from planner.constraints import Context
from planner.frameworks import rules
from planner.frameworks.base import Flag, Row, flag, in_group
from planner.frameworks.colossalai.rules import STYLES, family
from planner.frameworks.megatron.layout import chunks
from planner.huggingface.export.exporter import config_of
from planner.huggingface.numerics import keys_of

VOCAB_MULTIPLE = 128
DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}
GEMINI, HYBRID, MIXTURE = "GeminiPlugin", "HybridParallelPlugin", "MoeHybridParallelPlugin"
# Times of the parts of one micro-batch for zb-v's schedule, and the memory that each adds, as in
# ColossalAI's example; only their proportions matter.
COSTS = {"f_cost": 1000, "b_cost": 1000, "w_cost": 1000, "c_cost": 1}
KEPT = {"f_mem": 34, "b_mem": -2, "w_mem": -32}


def plugin(c: Context, plan: ParallelPlan) -> str:
    """The class of the plugin."""
    if plan.zero_stage == 3:
        return GEMINI
    return HYBRID if c.model.moe is None else MIXTURE


def _argument(group: str, name: str, value: object, why: str) -> Flag:
    source = json.dumps(value) if isinstance(value, str) else str(value)
    return flag(group, f"{group}.{name}", source, why)


def _source(name: str, source: str, why: str) -> Flag:
    return flag("plugin", f"plugin.{name}", source, why)


@in_group("plugin", _argument)
def _kernels(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    flash = plan.attention_kernel != "unfused"
    yield "precision", c.training.precision, "type of weights and activations"
    yield "enable_flash_attention", flash, "attention kernel"
    yield "max_norm", 1.0, rules.PLACEHOLDER


@in_group("plugin", _argument)
def _gemini(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    yield "tp_size", plan.tp, "ranks that split every layer"
    yield "placement_policy", "static", "fixed placement"
    yield "shard_param_frac", 1.0, "fraction of sharded weights: all, ZeRO 3"
    yield (
        "offload_optim_frac",
        float(plan.offload_optimizer),
        "1: states in host memory, 0: on the accelerator",
    )
    yield (
        "enable_gradient_accumulation",
        rules.accumulation(c, plan) > 1,
        "micro-batches are accumulated",
    )
    yield (
        "enable_async_reduce",
        plan.overlap_grad_reduce,
        "gradients reduced during the backward pass",
    )
    yield "max_prefetch", int(plan.overlap_param_gather), "weight chunks to prefetch"
    yield from _kernels(c, plan)


@in_group("plugin", _argument)
def _hybrid(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    mixture = c.model.moe is not None
    yield "tp_size", plan.tp, "ranks that split every layer"
    yield "pp_size", plan.pp, "pipeline stages"
    if mixture:
        yield "ep_size", plan.ep, "ranks that split the experts, inside dp"
    if plan.cp > 1:
        ring = plan.cp_kind == "p2p"
        yield "enable_sequence_parallelism", True, "the sequence is split"
        yield (
            "sequence_parallelism_mode",
            "ring_attn" if ring else "all_to_all",
            "keys and values are passed around a ring"
            if ring
            else "all-to-all from sequence to heads",
        )
        yield "sp_size", plan.cp, "ranks that split the sequence"
    elif plan.sequence_parallel:
        yield "enable_sequence_parallelism", True, "norms and dropout split over tp"
        yield "sequence_parallelism_mode", "split_gather", "Megatron's sequence parallelism"
        yield "sp_size", 1, "the tp ranks split the sequence"
    yield (
        "moe_dp_outside" if mixture else "dp_outside",
        plan.rank_order == "tp-cp-ep-pp-dp",
        "True: dp outside pp",
    )
    if plan.pp > 1:
        yield from _pipeline(c, plan)
    yield "zero_stage", plan.zero_stage, "1: states sharded, 2: gradients too"
    if plan.zero_stage:
        yield (
            "overlap_communication",
            plan.overlap_grad_reduce,
            "gradients reduced during the backward pass",
        )
        yield (
            "overlap_allgather",
            plan.overlap_param_gather,
            "overlap of the weight gather with the forward pass",
        )
        yield _source(
            "communication_dtype",
            DTYPES[c.training.gradient_reduce_dtype],
            "gradient reduction type",
        )
        yield "cpu_offload", plan.offload_optimizer, "optimizer states in host memory"
    yield "make_vocab_size_divisible_by", VOCAB_MULTIPLE, "embedding rows are padded"
    yield from _kernels(c, plan)


@in_group("plugin", _argument)
def _pipeline(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    style = STYLES[plan.schedule]
    layers = [c.model.num_layers // (plan.pp * plan.vpp)] * (plan.pp * plan.vpp)
    yield "pp_style", style, f"the schedule: {plan.schedule}"
    yield "num_model_chunks", plan.vpp, "chunks of layers per stage"
    if plan.vpp == 1:
        layers = list(chunks(c.model, plan))
        yield "num_layers_per_stage", layers, "layers of every stage"
    yield "microbatch_size", plan.micro_batch_size, "sequences per pass"
    if style == "interleaved":
        yield "overlap_p2p", plan.overlap_p2p, "overlap of messages between stages"
    if style == "zbv":
        graph = {"n_stage": plan.pp, "n_micro": rules.accumulation(c, plan), **COSTS, **KEPT}
        said = ", ".join(f"{name}={value}" for name, value in graph.items())
        yield _source(
            "scheduler_nodes", f"PipelineGraph({said}).get_v_schedule()", "schedule of every rank"
        )
    if plan.recompute == "full":
        every = plan.recompute_method == "uniform"
        most = plan.recompute_layers or (plan.recompute_num_layers,) * len(layers)
        counts = [n if every else min(n, redone) for n, redone in zip(layers, most, strict=True)]
        yield _counted(c, counts)


def _counted(c: Context, counts: list[int]) -> Flag:
    return _source(
        "gradient_checkpoint_config",
        f"PipelineGradientCheckpointConfig(num_ckpt_layers_per_stage={counts})",
        "recomputed layers of every chunk",
    )


def arguments(c: Context, plan: ParallelPlan) -> tuple[Flag, ...]:
    """The arguments of the plugin."""
    return tuple((_gemini if plugin(c, plan) == GEMINI else _hybrid)(c, plan))


def constants(c: Context, plan: ParallelPlan) -> Iterator[Flag]:
    """The constants at the top of train.py."""
    steps = rules.train_iterations("train", c.training).why
    count, why = rules.accumulated(c, plan)
    rows: tuple[tuple[str, str, str], ...] = (
        ("STEPS", f'int(os.environ.get("TRAIN_ITERS") or {rules.SMOKE_ITERATIONS})', steps),
        ("SEQ_LENGTH", str(c.training.seq_length), "tokens of one sequence"),
        ("MICRO_BATCH_SIZE", str(plan.micro_batch_size), "sequences per pass and rank"),
        ("ACCUMULATION", str(count), why),
        ("DTYPE", DTYPES[c.training.precision], "type of the weights"),
        ("RECOMPUTE", str(plan.recompute == "full"), "full activation recompute"),
        ("LEARNING_RATE", "1.0e-4", rules.PLACEHOLDER),
        ("OPTIMIZER", json.dumps(c.training.optimizer), "as planned"),
        ("PIPELINE", str(plan.pp > 1), "the plugin runs the micro-batches of a step"),
        (
            "ONE_REDUCTION",
            str(plan.pp == 1 and plan.zero_stage < 2),
            "gradients are reduced with the last micro-batch of a step",
        ),
    )
    for name, source, why in rows:
        yield flag("train", f"train.{name}", source, why)


def config(c: Context) -> dict[str, object]:
    """The content of config.json."""
    keys = dict(config_of(c.model) or {})
    keys |= keys_of(c.model, keys, "flat")
    if family(c.model) != "gpt2":
        keys["max_position_embeddings"] = c.training.seq_length
    return keys
