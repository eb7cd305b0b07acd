"""Plan on a cluster that no catalog has: its nodes, links and price stand in own_cluster.yaml."""

from pathlib import Path

from planner import plan
from planner.documents.loading import parse_text

request = parse_text(Path(__file__).with_suffix(".yaml").read_text())
answer = plan(request)
best = answer.best
gib = best.memory.peak_bytes / 2**30
print(f"{best.tokens_per_s:,.0f} tokens/s with {gib:.1f} GiB on the fullest GPU")

hours = request["training"]["tokens"] / best.tokens_per_s / 3600
cluster = request["cluster"]
gpus = cluster["nodes"] * cluster["accelerators_per_node"]
cost_usd = hours * gpus * cluster["price_usd_per_accelerator_hour"]
print(f"{hours / 24:.0f} days, {cost_usd:,.0f} USD")
