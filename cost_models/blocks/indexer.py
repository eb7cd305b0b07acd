"""Which keys a query attends to: all, those of a window, or those that an indexer picks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from cost_models.arrays import minimum, where
from cost_models.blocks.records import Cached, Gemm, MemoryBoundKernel, Record, SavedTensor, Weight
from cost_models.fields import Count, Spec, Width
from cost_models.sources import Array, formula

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import StackSpec


# FLOP rate of block-sparse attention relative to dense attention, forward and backward: a tenth of
# the blocks takes 2.6 + 9.1 ms where all take 21.0 + 52.3 (hao-ai-lab/FastVideo#1034, blocks of 64
# tokens, 16 heads of 128, 40,768 tokens).  Assumed for MiniMax-M3's kernels too: including scores,
# they reach 14.2 / 28.4 of the dense rate forward at a million tokens (minimax-m3, H800).
BLOCK_RATE = 0.1 * (21.0 + 52.3) / (2.6 + 9.1)


@formula("1", "derived")
def attention_span(window: float | None, seq_length: Array, block: float = 0.0) -> Array:
    """Mean number of keys a query is paired with before causal masking.

    A causal window w over s positions holds w(s - w/2) pairs, against s^2/2 for full causal.  A
    causal choice of at most w keys per query holds as many pairs.  A choice of whole blocks that
    includes the query's own holds half a block less for each query that sees more than w keys.
    """
    if window is None:
        return seq_length
    pairs = window * (seq_length - window / 2.0) - (seq_length - window) * block / 2.0
    return where(window >= seq_length, seq_length, 2.0 * pairs / seq_length)


class Indexer(Spec):
    """The lightning indexer of DeepSeek-V3.2: small heads score every earlier token, and each query
    attends to the top_k of them.  MiniMax-M3's indexer picks blocks, always including the query's
    own: each head picks for a group of attention heads, by the highest score in a block.

    Its queries are projected from the low-rank queries if there are any, else from the hidden
    state; its keys (one for all heads) and head weights from the hidden state.  Replicated on every
    tensor-parallel rank.
    """

    num_heads: Count
    head_dim: Width
    top_k: Count
    shared: bool = Field(False, description="uses what an earlier layer's indexer has picked")
    key_norm_bias: bool = Field(True, description="its keys' norm is a LayerNorm with a bias")
    query_norm: bool = Field(False, description="a norm over each head of its queries too")
    block_size: Count | None = Field(None, description="of blocks of keys; None: keys one by one")
    head_weights: bool = Field(True, description="heads count by weights that a token makes")

    def missing(self, groups: int) -> str:
        """Why these settings do not fit together or `groups` of heads; empty if they do."""
        if self.block_size is None:
            return ""
        if self.top_k % self.block_size:
            return f"top_k {self.top_k} is not a multiple of block_size {self.block_size}"
        if groups % self.num_heads:
            return f"num_query_groups {groups} is not a multiple of the indexer's num_heads"
        return "" if not self.head_weights else "an indexer of blocks has no head_weights"

    def cached(self) -> Cached:
        """Its keys, of every token, on every rank."""
        return Cached(float(self.head_dim), 2.0 * self.num_heads * self.head_dim)

    def span(self, seq_length: Array) -> Array:
        """Keys per query, as attention_span counts them."""
        return attention_span(self.top_k, seq_length, float(self.block_size or 0))

    @property
    def label(self) -> str:
        if self.block_size is None:
            return f"top {self.top_k}"
        return f"top {self.top_k // self.block_size} blocks of {self.block_size}"

    def weights(self, model: StackSpec, query_width: int) -> Iterator[Weight]:
        """Parameters of one rank; query_width: input width of the query projection."""
        if self.shared:
            return
        hidden = model.hidden_size
        yield Weight("indexer q", float(query_width * self.num_heads * self.head_dim), matrix=True)
        yield Weight("indexer k", float(hidden * self.head_dim), matrix=True)
        norm = self.head_dim * (1 + self.key_norm_bias)
        yield Weight("indexer k norm", float(norm), tensors=1 + self.key_norm_bias)
        if self.query_norm:
            yield Weight("indexer q norm", float(self.head_dim))
        if self.head_weights:
            yield Weight("indexer head weights", float(hidden * self.num_heads), matrix=True)

    def records(self, model: StackSpec, d: Dims, query_width: Array) -> Iterator[Record]:
        """Scores of the causal half of the square, ReLU, weighted sum over heads, top-k; with
        blocks, each head picks its own by the highest score in a block.

        Training runs the projections and scores on detached inputs with their own loss (a KL
        divergence), so no gradient flows to the input.
        """
        if self.shared:
            return
        hidden, heads, dim = float(model.hidden_size), float(self.num_heads), float(self.head_dim)
        tokens, rows = d.tokens, d.seq_length / d.cp
        yield Gemm("indexer q", tokens, heads * dim, query_width)
        yield Gemm("indexer k + weights", tokens, dim + heads * self.head_weights, hidden)
        # One product for the causal half: half of the keys for every query.
        yield Gemm(
            "indexer scores", rows, d.seq_length / 2.0, dim, "core_attn", d.sequences * heads,
            fp8=False, weights=False,
        )  # fmt: skip
        scores = d.sequences * rows * d.seq_length / 2.0
        # The GEMM's kernel sums scores over heads, or takes the maximum of each block; top-k reads
        # the result about twice.
        block = minimum(float(self.block_size or 1), d.seq_length)
        choices = heads if self.block_size else 1.0
        candidates = scores * choices / block
        yield MemoryBoundKernel("indexer top-k", 12.0 * candidates, 8.0 * candidates, "core_attn")
        width = dim * (heads + 1.0) + heads * self.head_weights
        yield SavedTensor("indexer q + k", tokens * width, d.activation_bytes)
        chosen = d.sequences * rows * choices * minimum(float(self.top_k), d.seq_length) / block
        yield SavedTensor("indexer choice", chosen, 4.0)
