"""DeepSpeed's engine, ZeRO and pipeline with Megatron-DeepSpeed's layers."""

from cost_models.runtimes.base import Runtime

RUNTIME = Runtime(
    name="deepspeed",
    title="DeepSpeed with Megatron-DeepSpeed",
    version="0.16 to 0.19, Megatron-DeepSpeed of 2022",
    sources=("deepspeed",),
    lineage="megatron",
    joins_qkv_gradients=1.0,
    accumulates_apart=1.0,
    serial_collectives=1.0,
    # BF16_Optimizer: fp32 accumulation beside the half-precision gradients, all of them reduced.
    keeps_half_gradients=1.0,
    reduces_whole_bf16_gradients=1.0,
    # stage_1_and_2.py reduce_bucket_size, stage3.py stage3_max_live_parameters.
    flat_buckets=1.0,
    gathers_by_matrix=1.0,
    most_live_parameters=1e9,
    # pipe/engine.py: pipe_partitioned, sends and receives one after the other, outputs kept.
    scatters_messages=1.0,
    messages_one_way=1.0,
    keeps_sent_outputs=1.0,
)
