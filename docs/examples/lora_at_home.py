"""Fine-tune an 8B on one card of 24 GB: what fits, up to which length, and how fast."""

from planner import fit

answer = fit(model="llama-3.1-8b", cluster="1x1xrtx-4090", training={"global_batch_size": 16})
for row in answer.rows:
    cells = [cell for cell in row.cells if cell.fits]
    if not cells:
        print(f"{row.title}: does not fit")
        continue
    longest = max(cells, key=lambda cell: cell.seq_length)
    print(
        f"{row.title} with {row.trainer_title}: up to {longest.seq_length:,} tokens, there "
        f"{longest.tokens_per_s:,.0f} tokens/s"
    )
