"""The keys of GPT-NeoX's config, with reasons."""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.package_files import table
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec, TrainingSpec
from planner.constraints import Context
from planner.documents.request import PlanRequest
from planner.frameworks import rules
from planner.frameworks.deepspeed.flags import batch, zero
from planner.frameworks.unwritten_facts import written
from planner.frameworks.yaml_files import Row

VOCAB_MULTIPLE = 128
POSITIONS = {"rope": "rotary", "learned": "learned", "alibi": "alibi", "none": "none"}
PRECISIONS = {"bf16": "bfloat16", "fp16": "fp16"}
EPSILONS = {"layernorm": "layernorm_epsilon", "rmsnorm": "rms_norm_epsilon"}
_TABLE = table(__package__ or "", "fields.json")
# Model field -> key and reason.
PLAIN: dict[str, tuple[str, str]] = _TABLE["model"]
NUMERICS: dict[str, str] = _TABLE["numerics"]
WHY = "from the model's config.json"


def numerics_fields(model: ModelSpec) -> frozenset[str]:
    """Fields of the model's numerics that have a key; a rotary base only if it is whole."""
    return written(model, (*NUMERICS, "norm_epsilon"), ("rope_theta", "rotary_share"))


def intermediate_size(model: ModelSpec) -> int:
    """The key from which GPT-NeoX derives the MLP's width: a third of it if the MLP is gated."""
    return 3 * model.ffn_hidden_size if model.gated_mlp else model.ffn_hidden_size


def _model(model: ModelSpec, training: TrainingSpec, plan: ParallelPlan) -> Iterator[Row]:
    for field, (key, why) in PLAIN.items():
        yield key, getattr(model, field), why
    gate = "; a gated MLP uses a third" if model.gated_mlp else ""
    yield "intermediate_size", intermediate_size(model), f"width of the MLP{gate}"
    yield "mlp_multiple_of", 1, "no rounding of that width"
    yield "activation", "swiglu" if model.gated_mlp else "gelu", "activation of the MLP"
    yield "seq_length", training.seq_length, "tokens of one sequence"
    positions = max(training.seq_length, model.max_position_embeddings or 0)
    yield "max_position_embeddings", positions, "at least the sequence length"
    yield "pos_emb", POSITIONS[model.position], "position encoding"
    yield "no_weight_tying", not model.tied_embeddings, "the output layer has its own weights"
    if model.parallel_residual:
        yield "gpt_j_tied", model.norms_per_layer == 1, "one norm for attention and MLP"
    yield "output_layer_parallelism", "column", "the vocabulary is split over tp"
    yield "make_vocab_size_divisible_by", VOCAB_MULTIPLE, "rows are padded to this x tp"
    kind = "global" if plan.attention_kernel == "unfused" else "flash"
    newest = ", the newest supported" if plan.attention_kernel == "flash" else ""
    yield "attention_config", [[[kind], model.num_layers]], f"flash: flash-attention 2{newest}"
    if model.sliding_window is not None:
        yield "sliding_window_width", model.sliding_window - 1, "previous tokens in the window"
    yield "scaled_upper_triang_masked_softmax_fusion", kind == "global", "fused mask and softmax"
    for name in sorted(numerics_fields(model)):
        value = getattr(model.numerics, name)
        key = EPSILONS[model.norm] if name == "norm_epsilon" else NUMERICS[name]
        yield key, int(value) if name == "rope_theta" else value, WHY


def _parallel(plan: ParallelPlan) -> Iterator[Row]:
    stages = plan.pp if plan.pp > 1 else 0
    yield "pipe_parallel_size", stages, "pipeline stages, 1F1B; 0: no pipeline engine"
    yield "model_parallel_size", plan.tp, "ranks that split every layer"
    yield "sequence_parallel", plan.sequence_parallel, "norms and dropout split over tp"
    yield "checkpoint_activations", plan.recompute == "full", "full activation recompute"
    yield "checkpoint_num_layers", 1, "layers per checkpoint"
    yield "partition_activations", False, "layer inputs are not split over tp"
    if plan.offload_activations:
        yield "checkpoint_in_cpu", True, "layer inputs are kept in host memory"


def _precision(training: TrainingSpec) -> Iterator[Row]:
    yield "precision", PRECISIONS[training.precision], "weights and activations"
    if training.precision == "fp16":
        yield "fp16.enabled", True, "dynamic loss scale"
    else:
        yield "bf16.enabled", True, "precision of the DeepSpeed engine"
    yield "data_types.grad_accum_dtype", training.gradient_dtype, "gradient accumulation type"
    yield (
        "deepspeed_extra_args.communication_data_type",
        training.gradient_reduce_dtype,
        "gradient reduction type",
    )


def _optimizer(training: TrainingSpec, plan: ParallelPlan) -> Iterator[Row]:
    yield from zero(plan)
    kind = "cpu_adam" if plan.offload_optimizer else training.optimizer
    yield "optimizer.type", kind, "as planned"
    yield "optimizer.params.lr", rules.LEARNING_RATE, rules.PLACEHOLDER
    if training.optimizer == "sgd" and plan.zero_stage:
        yield (
            "deepspeed_extra_args.zero_allow_untested_optimizer",
            True,
            "SGD is untested with ZeRO",
        )
    yield "min_lr", 0.0, rules.PLACEHOLDER
    yield "lr_decay_style", "cosine", rules.PLACEHOLDER
    yield "weight_decay", 0.1, rules.PLACEHOLDER
    yield "gradient_clipping", 1.0, rules.PLACEHOLDER


def rows(request: PlanRequest, plan: ParallelPlan) -> Iterator[Row]:
    """Every key of config.yml."""
    c = Context(request.model, request.cluster, request.training)
    yield from _model(c.model, c.training, plan)
    yield from _parallel(plan)
    yield from batch(c, plan)
    yield from _precision(c.training)
    yield from _optimizer(c.training, plan)
    yield "train_iters", rules.SMOKE_ITERATIONS, rules.train_iterations("", c.training).why
    yield "lr_decay_iters", rules.SMOKE_ITERATIONS, rules.PLACEHOLDER
    yield "data_path", "mock_data/mock", "MOCK DATA, random tokens: put your data set here"
    yield "data_impl", "mmap", "the format of data_path"
    yield "split", "100,0,0", "no evaluation on mock data"
    yield "eval_iters", 0, "no evaluation on mock data"
    yield "tokenizer_type", "HFTokenizer", "tokenizer of a tokenizer.json"
    yield "vocab_file", "mock_data/tokenizer.json", f"mock tokenizer of {c.model.vocab_size} tokens"
    yield "log_interval", 1, "iteration time on every step"
    yield "steps_per_print", 1, "iteration time on every step"
