"""The same training on 64 H100 and on 64 B200: speed, and what a trillion tokens cost."""

from planner import plan

TOKENS = 1e12
for cluster in ("8x8xh100-sxm", "8x8xb200"):
    answer = plan(
        model="llama-3.1-70b",
        cluster=cluster,
        training={"seq_length": 8192, "global_batch_size": 1024},
        search={"framework": "megatron"},
    )
    (group,) = answer.request["cluster"]["groups"]
    hours = TOKENS / answer.best.tokens_per_s / 3600
    cost_usd = hours * 64 * group["price_usd_per_accelerator_hour"]
    band = answer.best.error_band
    print(cluster)
    print(f"  {answer.best.tokens_per_s:,.0f} tokens/s")
    print(f"  {band.low_s:.0f} to {band.high_s:.0f} s per iteration in four of five cases")
    print(f"  {hours / 24:.0f} days, {cost_usd / 1e6:.2f} million USD")
