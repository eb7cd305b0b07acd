"""The last norm, the output layer and the loss, with the projections of multi-token prediction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from cost_models.arrays import any_of, maximum, minimum
from cost_models.blocks.base import End
from cost_models.blocks.embedding import padded_vocab_size
from cost_models.blocks.norm import FP32_BYTES, norm_copies, norm_parameters
from cost_models.blocks.records import (
    Boundary,
    Collective,
    Gemm,
    MemoryBoundKernel,
    Record,
    SavedTensor,
    Split,
    Weight,
    Working,
)
from cost_models.sources import Array, formula

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import ModelSpec


# trl/trainer/sft_trainer.py, _CHUNKED_LM_HEAD_CHUNK_SIZE.
CHUNK_TOKENS = 256.0
# torchtune's losses in chunks, num_output_chunks.
KEPT_CHUNKS = 8.0
# Tokens of each sequence (litgpt finetune/lora.py, lm_head_chunk_size).
HEAD_CHUNK = 128.0


@formula("1", "liger")
def liger_chunk_tokens(model: ModelSpec, d: Dims) -> Array:
    """Tokens per chunk: its logits have about as many elements as the input of all tokens."""
    parts = np.ceil(model.vocab_size / model.hidden_size)
    chunk: Array = 2.0 ** np.ceil(np.log2(maximum(d.tokens / parts, 1.0)))
    return np.minimum(chunk, d.tokens)


class Head(End):
    """A tied head adds no matrix of its own: the word table is counted with the embedding (a
    pipeline that holds a second copy of it adds that copy).
    """

    sources: ClassVar[tuple[str, ...]] = ("megatron-core", "torch", "deepseek-v3")
    part: ClassVar[str] = "head"
    divisible_by: int = 128

    def weights(self, model: ModelSpec, split: Split) -> Iterator[Weight]:
        rows = np.divide(padded_vocab_size(model.vocab_size, split.tp, self.divisible_by), split.tp)
        if model.final_norm:
            norm = norm_parameters(model, model.hidden_size)
            yield Weight("last norm", norm, tensors=1 + model.norm_bias)
        if model.residual_streams > 1:
            streams = model.residual_streams
            yield Weight("stream sums", streams * streams * float(model.hidden_size))
            yield Weight("stream sum offsets", streams + 1.0, tensors=2)
        if not model.tied_embeddings:
            yield Weight("head", rows * model.hidden_size, matrix=True)
        if model.lm_head_bias:
            yield Weight("head bias", rows)

    def _local_vocab(self, model: ModelSpec, d: Dims) -> Array:
        """Rows of the output layer on one tensor-parallel rank."""
        return padded_vocab_size(float(model.vocab_size), d.tp, self.divisible_by) / d.tp

    def records(self, model: ModelSpec, d: Dims) -> Iterator[Record]:
        """Last norm, logits and vocabulary-parallel cross-entropy.

        Loss in bytes per logit: bf16 to fp32, maximum, shift, exponent, sum, normalise, one pass
        each: 38 forward, 12 backward.  Fused (Megatron's native fusion, fp32 inside): conversion
        and maximum 2 + 4 + 4, shift and exponent 8, normalise 8: 26; backward 10.

        With multi-token prediction the head runs 1 + mtp times, the mtp projection mtp times.
        """
        hidden = float(model.hidden_size)
        vocab = self._local_vocab(model, d)
        norm, logits = d.sharded_tokens * hidden, d.tokens * vocab
        if model.residual_streams > 1:
            streams = float(model.residual_streams)
            yield Gemm("stream sums", d.sharded_tokens, streams, streams * hidden, fp8=False)
            yield SavedTensor("last streams", streams * norm, d.activation_bytes)
        if model.final_norm:
            yield MemoryBoundKernel("last norm", 4.0 * norm, 6.0 * norm, kind=f"last {model.norm}")
        yield Gemm("logits", d.tokens, vocab, hidden, fp8=False)
        # A chunk is computed again for its backward: half of the rows each way, without a weight
        # gradient, take as long as one pass.
        at_once = d.chunked_loss * d.differentiated_loss
        if any_of(d.chunked_loss):
            yield Gemm(
                "logits again", 0.5 * d.tokens, vocab, hidden, fp8=False, trained=False,
                active=d.chunked_loss * (1.0 - d.runtime.keeps_chunk_logits) * (1.0 - at_once),
            )  # fmt: skip
        yield MemoryBoundKernel(
            "cross-entropy",
            (38.0 - 12.0 * d.fused_loss - 20.0 * at_once) * logits,
            (12.0 - 2.0 * d.fused_loss - 10.0 * at_once) * logits,
            kind="cross-entropy",
        )
        if any_of(at_once):
            # Each chunk casts fp32 weights, and adds to their gradients: read and written in fp32,
            # or a product that is widened, added and narrowed.
            chunks = at_once * vocab * hidden * d.tokens / liger_chunk_tokens(model, d)
            casts, sums = 6.0 * d.autocast, 14.0 - 6.0 * d.autocast
            yield MemoryBoundKernel("head gradient sums", casts * chunks, sums * chunks)
        if model.mtp_num_layers:
            share = model.mtp_num_layers / (1.0 + model.mtp_num_layers)
            yield Gemm("mtp projection", d.tokens, hidden / d.tp, 2.0 * hidden, active=share)
            yield MemoryBoundKernel("mtp norms", 8.0 * norm, 12.0 * norm, active=share)
        # The input is gathered and its gradient scattered; the largest logit, the sum of
        # exponentials and the target's logit of each token are all-reduced.
        yield Boundary()
        values = FP32_BYTES * d.tokens
        yield Collective(("all_reduce",), values, "tp", times=3.0, mirrored=False)
        yield from self._kept(model, d, logits)

    def _kept(self, model: ModelSpec, d: Dims, logits: Array) -> Iterator[Record]:
        """Megatron's native fusion saves the fp32 exponentials; an in-place loss (Transformer
        Engine's, or torch's compiled one) saves the half-precision logits, which it overwrites or
        reads again.

        Alive only around the loss: the 2-byte logits or their 2-byte gradient (Transformer Engine
        overwrites one with the other).  Torch's unfused loss also holds the fp32 logits and an fp32
        gradient, where Megatron's works in place; its loss_parallel holds four fp32 tensors in all
        (log-softmax, gradient, their sum and its product).  Then the gradient of the head's input,
        before and after its reduction, and the input gathered again.
        """
        r, width, hidden = d.runtime, d.activation_bytes, float(model.hidden_size)
        others = maximum(d.tokens - d.sharded_tokens, 0.0)
        norm_output = d.sharded_tokens + others * r.keeps_gathered_input
        rows = d.sharded_tokens * hidden
        yield SavedTensor("last norm input", rows, d.residual_bytes, by_operator=1.0)
        yield from norm_copies(
            model, d, "last", rows, d.residual_bytes, ("layernorm",), by_operator=1.0
        )
        yield SavedTensor("last norm output", norm_output * hidden, width, by_operator=1.0)
        in_place = maximum(d.in_place_loss, r.half_precision_logits)
        half = maximum(in_place, d.fused_loss * r.fused_loss_in_place)
        logit_bytes = FP32_BYTES + (width - FP32_BYTES) * half
        unchunked = 1.0 - d.chunked_loss
        yield SavedTensor("logits", logits, logit_bytes, (), unchunked, by_operator=1.0)
        chunked = d.chunked_loss * r.keeps_chunk_logits
        plain = 1.0 - d.compiled
        if any_of(chunked):
            halves = width * maximum(r.keeps_half_chunk_logits, d.compiled)
            yield SavedTensor("chunks", logits, halves + FP32_BYTES * plain, (), chunked, 1.0)
        copies = 2.0 * FP32_BYTES + width * (d.tp > 1)
        extra = copies * r.autograd_loss * (1.0 - d.fused_loss)
        half_kept = width * (1.0 - in_place) * (1.0 - r.drops_half_logits)
        # Of a chunk its logits in both types, their logarithms and two gradients are alive.
        at_once = d.chunked_loss * d.differentiated_loss
        chunk = logits * minimum(CHUNK_TOKENS / d.tokens, 1.0)
        chunk = chunk * (width + 3.0 * FP32_BYTES) * (d.chunked_loss - chunked - at_once)
        # Liger's kernel writes the gradient of a chunk over its logits.
        chunk = chunk + 2.0 * width * logits / d.tokens * liger_chunk_tokens(model, d) * at_once
        chunk = chunk + self._gradients_in_loss(model, d)
        chunk = chunk + logits / KEPT_CHUNKS * (width + 2.0 * FP32_BYTES * plain) * chunked
        regathered = others * (1.0 - r.keeps_gathered_input)
        inputs = (d.tokens + d.sharded_tokens + regathered) * hidden * width
        chunk = chunk + self._gradients_of_chunks(model, d)
        yield Working(inputs + logits * unchunked * (half_kept + extra) + chunk)

    def _gradients_of_chunks(self, model: ModelSpec, d: Dims) -> Array:
        """Bytes of the head's gradients in the backward pass of a loss in chunks.

        That of a chunk is added to the sum of those before; where chunks are computed again their
        cast of the weights, which is counted with all others, is gone by then, and makes room.
        """
        alive = (1.0 + d.runtime.keeps_chunk_logits) * (1.0 - d.differentiated_loss)
        weights = self._local_vocab(model, d) * model.hidden_size
        return d.chunked_loss * alive * weights * d.activation_bytes

    def _gradients_in_loss(self, model: ModelSpec, d: Dims) -> Array:
        """Bytes of the head's gradient where the loss makes it, and of what is added to it.

        Beside fp32 weights their narrow copy, else a product in half precision and its fp32 copy.
        """
        weights = self._local_vocab(model, d) * model.hidden_size
        each = d.residual_bytes + d.activation_bytes + FP32_BYTES * (1.0 - d.autocast)
        return d.chunked_loss * d.differentiated_loss * each * weights

    def cast_weights(self, model: ModelSpec, d: Dims) -> SavedTensor:
        """The half-precision copy of fp32 weights, which the gradient of the head's input reads."""
        weights = self._local_vocab(model, d) * model.hidden_size
        active = d.autocast * (1.0 - d.chunked_loss)
        return SavedTensor("head cast", weights, d.activation_bytes, (), active)

    def spared_bytes(self, model: ModelSpec, d: Dims) -> Array:
        """Bytes saved around the loss where the head is frozen and computed in chunks.

        Its weight gradients; and of an unfused loss an fp32 gradient of all logits, where there are
        two of a chunk and one in half precision.
        """
        r, width = d.runtime, d.activation_bytes
        vocab = self._local_vocab(model, d)
        share = minimum(HEAD_CHUNK / d.seq_length, 1.0)
        each = maximum(FP32_BYTES - share * (2.0 * FP32_BYTES + width), 0.0)
        by_chunk = r.chunks_head * (1.0 - d.fused_loss) * each * d.tokens * vocab
        gradients = self._gradients_of_chunks(model, d) + self._gradients_in_loss(model, d)
        return by_chunk + gradients
