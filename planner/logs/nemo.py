"""NeMo: the steps that its progress lines print, and the recipe that it prints as YAML."""

from __future__ import annotations

import re
from typing import ClassVar

from planner.logs.document import CodeBase
from planner.logs.draft import Draft, Reader, number_of

_STEP = re.compile(r"global_step[:=]\s*([\d.]+)")
_ITERATION = re.compile(r"iteration (\d+)/\d+")
_TIME = re.compile(r"train_step_timing in s[:=]\s*([\d.e+-]+)")
_BATCH = re.compile(r"global_batch_size[:=]\s*([\d.]+)")
_LOSS = re.compile(r"reduced_train_loss[:=]\s*([^\s|,\]]+)")
_FLOPS = re.compile(r"TFLOPS_per_GPU[:=]\s*([\d.e+]+)")
_PEAK = re.compile(r"peak_memory_usage[:=]\s*([\d.]+)")
_KEY = re.compile(r"\s*(\w+)\s*[:=]\s*([\w.+-]+),?\s*$")
TIMING = "train_step_timing in s"
# Keys that its recipes share with Megatron's arguments.
SHARED = frozenset(
    [
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "num_attention_heads",
        "num_query_groups",
        "kv_channels",
        "num_moe_experts",
        "moe_router_topk",
        "moe_ffn_hidden_size",
        "normalization",
        "add_bias_linear",
        "add_qkv_bias",
        "gated_linear_unit",
        "share_embeddings_and_output_weights",
        "position_embedding_type",
        "seq_length",
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "virtual_pipeline_model_parallel_size",
        "context_parallel_size",
        "expert_model_parallel_size",
        "expert_tensor_parallel_size",
        "sequence_parallel",
        "micro_batch_size",
        "global_batch_size",
        "recompute_granularity",
        "recompute_method",
        "recompute_num_layers",
        "bf16",
        "fp16",
        "fp8",
        "fp8_recipe",
        "use_distributed_optimizer",
        "overlap_grad_reduce",
        "overlap_param_gather",
        "tp_comm_overlap",
        "vocab_size",
        "hidden_dropout",
        "attention_dropout",
        "grad_reduce_in_bf16",
    ]
)


class Nemo(Reader):
    """Progress lines of Lightning with NeMo's timing, and printed keys of its config."""

    marks: ClassVar[tuple[str, ...]] = (
        TIMING,
        "Validation",
        "validation",
        "checkpoint",
        *sorted(f"{name}:" for name in SHARED),
    )

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.seen = False

    def take(self, number: int, process: str, text: str) -> bool:
        timing = _TIME.search(text)
        step = _STEP.search(text) or _ITERATION.search(text)
        if timing and step:
            if self.draft.first_process(TIMING, process):
                self._step(int(float(step[1])), number_of(timing[1]), number, text)
        elif (self.seen and re.match(r"Validati|.*(?:Epoch \d+, )?[Vv]alidation.*it", text)) or (
            "checkpoint" in text and re.search(r"[Ss]av(?:ing|ed)", text)
        ):
            self.draft.pause()
        elif (found := _KEY.fullmatch(text)) and found[1] in SHARED:
            value = {"true": "True", "false": "False", "null": "None"}.get(found[2], found[2])
            self.draft.options.setdefault(found[1], (value, number))
        return False

    def _step(self, step: int, seconds: float, line: int, text: str) -> None:
        self.seen = True
        if loss := _LOSS.search(text):
            self.draft.loss(loss[1], line)
        if batch := _BATCH.search(text):
            self.draft.samples(int(float(batch[1])), line)
        # Bars repeat the last timing until the next step is done.
        self.draft.step(TIMING, step, seconds, line)
        if flops := _FLOPS.search(text):
            self.draft.rate("tflops", number_of(flops[1]))
        if peak := _PEAK.search(text):
            self.draft.uses("max allocated", number_of(peak[1]), line)

    @property
    def code_base(self) -> CodeBase | None:
        return "nemo" if self.seen else None
