"""The keys of MaxText's config, with reasons."""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.numerics import RopeScaling
from cost_models.package_files import table
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner.constraints import Context
from planner.frameworks import rules
from planner.frameworks.maxtext.mesh import mesh, on_tpus
from planner.frameworks.maxtext.rules import KEPT, block, policies
from planner.frameworks.yaml_files import Row

_TABLE = table(__package__ or "", "fields.json")
# Model field -> key and reason.
PLAIN: dict[str, tuple[str, str]] = _TABLE["model"]
NUMERICS: dict[str, str] = _TABLE["numerics"]
OPTIMIZERS = {"adam": "adamw", "sgd": "sgd"}
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
# The RoPE scaling of `rope_type: llama3.1` (layers/embeddings.py).
LLAMA3 = RopeScaling(
    kind="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
)
WHY = "from the model's config.json"


def numerics_fields(model: ModelSpec) -> frozenset[str]:
    """Fields of the model's numerics that have a key; a rotary base only if it is whole."""
    base = model.numerics.rope_theta
    found = model.numerics.stated & NUMERICS.keys()
    if model.numerics.rope_scaling == LLAMA3:
        found |= {"rope_scaling"}
    return found - {"rope_theta"} if base is not None and base != int(base) else found


def _model(model: ModelSpec) -> Iterator[Row]:
    yield "decoder_block", block(model), "type of the layers"
    for field, (key, why) in PLAIN.items():
        yield key, getattr(model, field), why
    yield "mlp_activations", ["silu", "linear"], "a gated MLP"
    yield "attention_bias", model.qkv_bias, "bias of the query/key/value projections"
    yield "use_qk_norm", model.qk_norm == "head", "norms on queries and keys"
    yield "enable_dropout", False, "no dropout"
    moe = model.moe
    if moe is not None:
        width = moe.expert_ffn_hidden_size
        yield "num_experts", moe.num_experts, "experts of a layer"
        yield "num_experts_per_tok", moe.top_k, "experts per token"
        yield "base_moe_mlp_dim", width, "width of an expert"
        yield "sparse_matmul", True, "grouped GEMMs, no dropped tokens"
    if "rope_scaling" in numerics_fields(model):
        yield "rope_type", "llama3.1", "RoPE scaling by 8, as in Llama 3.1"
    for name in sorted(numerics_fields(model) - {"rope_scaling"}):
        value = getattr(model.numerics, name)
        yield NUMERICS[name], int(value) if name == "rope_theta" else value, WHY


def _mesh(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    own = mesh(c.cluster, plan)
    data, fsdp = own.between
    yield "ici_data_parallelism", own.data // data, "replicas"
    yield "ici_fsdp_parallelism", own.fsdp // fsdp, "ranks that shard the weights"
    yield "ici_context_parallelism", own.context, "ranks that split the sequence"
    yield "ici_tensor_parallelism", 1, "tp is the next axis, which also splits the residual stream"
    yield "ici_tensor_sequence_parallelism", own.tensor, "ranks that split every layer"
    yield "ici_expert_parallelism", own.expert, "ranks that split the experts"
    yield "dcn_data_parallelism", data, "replicas over slices"
    yield "dcn_fsdp_parallelism", fsdp, "shards over slices"
    shards = plan.zero_stage == 1
    yield "shard_optimizer_over_data", shards, "optimizer states sharded over replicas (ZeRO 1)"


def _memory(model: ModelSpec, plan: ParallelPlan) -> Iterator[Row]:
    own = set(plan.recompute_modules)
    named = (name for modules, name in policies(model).items() if set(modules) == own)
    policy = next(named) if own else plan.recompute
    offloads = plan.recompute != "none" and plan.offload_activations
    yield "remat_policy", "custom" if offloads else policy, "activation recompute"
    if offloads:
        for name in ("decoder_layer_input", *KEPT[policy]):
            yield name, "offload", f"kept as by {policy}, in host memory"
    if plan.offload_optimizer:
        yield "optimizer_memory_host_offload", True, "optimizer states in host memory"


def _attention(c: Context, plan: ParallelPlan) -> str:
    if plan.attention_kernel == "unfused":
        return "dot_product"
    return "flash" if on_tpus(c.cluster) else "cudnn_flash_te"


def rows(c: Context, plan: ParallelPlan) -> Iterator[Row]:
    """Every key of config.yml."""
    training, steps = c.training, rules.train_iterations("", c.training)
    yield "base_config", "base.yml", "MaxText's defaults for the rest"
    yield "run_name", "smoke-run", "output folder"
    yield "hardware", "tpu" if on_tpus(c.cluster) else "gpu", "type of the accelerators"
    yield from _model(c.model)
    yield from _mesh(c, plan)
    yield (
        "per_device_batch_size",
        plan.micro_batch_size / (plan.tp * plan.cp),
        f"micro batch {plan.micro_batch_size} / {plan.tp * plan.cp} ranks of tp x cp",
    )
    yield "gradient_accumulation_steps", *rules.accumulated(c, plan)
    yield "max_target_length", training.seq_length, "tokens of one sequence"
    yield "steps", rules.SMOKE_ITERATIONS, steps.why
    yield from _memory(c.model, plan)
    yield "attention", _attention(c, plan), "attention kernel"
    yield "context_parallel_strategy", "all_gather", "exchange of keys and values"
    yield "dtype", "bfloat16", "type of activations and computation"
    yield "weight_dtype", "float32", "type of the stored weights, the master copy"
    yield "grad_dtype", DTYPES[training.gradient_dtype], "gradient accumulation type"
    yield "opt_type", OPTIMIZERS[training.optimizer], "as planned"
    yield "learning_rate", rules.LEARNING_RATE, rules.PLACEHOLDER
    yield "dataset_type", "synthetic", "MOCK DATA, random tokens: put your data set here"
    yield "packing", False, "no packing of samples"
    yield "enable_checkpointing", False, "a smoke run saves nothing"
    yield "log_period", 1, rules.PLACEHOLDER
