"""A grid of questions as a table: how throughput grows with nodes and batch."""

from planner import sweep

answer = sweep(
    base={
        "model": "llama-3.1-8b",
        "training": {"seq_length": 8192},
        "search": {"framework": "megatron"},
    },
    axes={
        "cluster": ["1x8xh100-sxm", "4x8xh100-sxm"],
        "training.global_batch_size": [64, 256],
    },
    workers=1,
)
for row in answer.rows:
    print(row["cluster"], row["training.global_batch_size"], f"{row['tokens_per_s']:,.0f} tokens/s")
