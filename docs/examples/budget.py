"""What to rent for a budget: the cheapest and the fastest of what keeps it."""

from planner import size

answer = size(
    model="llama-3.1-8b",
    training={"seq_length": 8192, "global_batch_size": 512, "tokens": 1e11},
    sizing={"accelerators": ["h100-sxm", "b200"], "sizes": [32, 64], "budget_usd": 40_000},
)
for name, index in (("cheapest", answer.cheapest), ("fastest", answer.fastest)):
    row = answer.rows[index]
    what = f"{row.accelerators} x {row.accelerator}"
    print(f"{name}: {what}, {row.days:.1f} days, {row.cost_usd:,.0f} USD")
