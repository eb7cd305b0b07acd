"""torchtune before 0.6: models of plain operators, whose loss in chunks keeps its logits."""

from dataclasses import replace

from cost_models.runtimes import eager

RUNTIME = replace(
    eager.RUNTIME,
    name="torchtune-2024",
    title="torchtune of 2024: plain operators, loss in chunks of kept logits",
    version="torchtune 0.3 to 0.5",
    sources=("torch", "torchtune"),
    # modules/attention_utils.py: torch.compiler.disable around flex_attention.
    calls_attention_apart=1.0,
    # modules/loss/ce_chunked_output_loss.py; modules/transformer.py, chunked_output.
    keeps_half_chunk_logits=1.0,
    # modules/transformer.py: self.output(h).float().
    drops_half_logits=1.0,
)
