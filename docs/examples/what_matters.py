"""What a plan's time rests on: each input by itself at twice and at half its value."""

from planner import sensitivity

answer = sensitivity(
    model="llama-3.1-8b",
    cluster="4x8xh100-sxm",
    training={"seq_length": 8192, "global_batch_size": 128},
    search={"framework": "megatron"},
    sensitivity={
        "inputs": ["peak_flop_per_s", "memory_bytes_per_s", "network_bandwidth_bytes_per_s"]
    },
)
for shift in answer.inputs:
    print(shift.title)
    for point in shift.points:
        print(f"  x{point.factor:g}: {point.fixed_change:+.1%} time with the same plan")
