"""What a runtime is to the cost model: the answers to physical questions about its kernels.

Traits hold numbers or arrays over plans, so that a formula reads `r.keeps_gathered_input` whether
it prices one plan or a batch of plans of several runtimes.  A flag is 1 where it holds, else 0.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from cost_models.sources import Array


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The defaults are what most runtimes do: nothing is fused, cast or kept beyond the model's."""

    # Kernels.
    eager_operators: Array = 0.0
    """Memory-bound work runs operator by operator, unless torch.compile fuses it."""
    fuses_layer_kernels: Array = 0.0
    """Norms, rotations and gated activations are kernels of their own all the same, as with Liger's
    loss."""
    eager_activation: Array = 0.0
    """The activation of a gated MLP is two operators all the same."""
    joins_qkv_gradients: Array = 0.0
    """The gradients of queries, keys and values are copied into one tensor."""
    repeats_key_value_heads: Array = 0.0
    """Keys and values are copied up to the number of query heads before attention."""
    fused_accumulation: Array = 0.0
    """The GEMM of a weight gradient adds to the accumulation buffer itself."""
    accumulates_apart: Array = 0.0
    """A weight gradient is added to the accumulation buffer by a pass of its own."""
    autocasts: Array = 0.0
    """Unless weights are sharded, the forward pass runs under torch.autocast: the residual stream
    stays in fp32, and each matrix product casts its input and its weight for itself."""
    casts_adapters: Array = 0.0
    """Adapters are fp32: each widens its input, which autocast narrows again for its product."""
    fuses_adapters: Array = 0.0
    """Without dropout an adapter's product adds to its matrix's output itself, and the input of the
    last product of a gated MLP is not saved but made again."""
    serial_collectives: Array = 0.0
    """Collectives of tensor parallelism run one after the other with the kernels."""
    overlaps_own_shard: Array = 0.0
    """Overlap of tensor parallelism is no more than this: a gather runs under the product of the
    rank's own shard, and what Megatron hides under a weight gradient hides there."""
    copies_around_collectives: Array = 0.0
    """Each collective over the sequence copies its tensor once."""
    gathers_context_under_chunks: Array = 0.0
    """Keys and values are gathered at once, under the first of cp chunks of attention."""
    passes_recurrent_states: Array = 0.0
    """Context-parallel ranks pass on states of recurrences; else an all-to-all shards by heads."""
    merges_context_in_fp32: Array = 0.0
    """What the chunks of a ring contribute is merged in fp32, operator by operator."""
    sums_adapters_with_matrices: Array = 0.0
    """What adapters add is summed over tensor-parallel ranks with the matrix's own output."""
    cast_forward_bytes: Array = 4.0
    """Read and written per element to cast a GEMM's input to fp8."""
    cast_backward_bytes: Array = 4.0
    """Read and written per element to cast the gradient of a GEMM's output to fp8."""
    recast_bytes: Array = 0.0
    """Read and written per element to cast the saved input again for the weight gradient."""
    replays_graphs: Array = 0.0
    """CUDA graphs hold whole iterations: the host launches nothing, and nothing waits for it."""
    rotates_while_joining: Array = 0.0
    """One kernel joins the parts of latent attention's keys and rotates them."""
    fuses_expert_activation: Array = 0.0
    """The grouped GEMMs of experts apply the activation themselves."""
    calls_one_expert_plainly: Array = 0.0
    """The product of a single local expert is a plain one, not a grouped one."""
    ragged_tile_rows: Array = 0.0
    """Rows of a tile of the grouped GEMMs, if a tile that two experts share is computed twice."""
    adds_expert_bias_apart: Array = 0.0
    """Biases of experts, and the clamps of those that have them, run operator by operator."""
    # Saved tensors.
    keeps_gathered_input: Array = 0.0
    """A column-parallel GEMM saves its gathered input; else the shard, gathered again backward."""
    keeps_frozen_inputs: Array = 0.0
    """Products with weights of 4 bits save their inputs, though no gradient reads them."""
    holds_frozen_inputs: Array = 0.0
    """They hold those of the last micro-batch too, until the loss of the next one is there."""
    joins_adapters: Array = 0.0
    """Queries, keys and values are one matrix for adapters too: one input for all three, and what
    dropout makes of it."""
    keeps_repeated_heads: Array = 0.0
    """Fused attention saves keys and values with a copy for every query head, unless torch.compile
    makes them again."""
    calls_attention_apart: Array = 0.0
    """Attention is no part of what torch.compile compiles."""
    pads_adapters: Array = 0.0
    """What adapters add to some of queries, keys and values is padded for all of them, and kept."""
    views_values: Array = 0.0
    """Values are a part of the product of queries, keys and values, which they keep whole where
    there is one for every query head."""
    norms_in_fp32: Array = 0.0
    """An RMSNorm that runs operator by operator saves its input in fp32, and what it returns
    before it is multiplied with its weight."""
    keeps_norm_statistics: Array = 0.0
    """Norms keep their fp32 statistics per row."""
    keeps_cast_inputs: Array = 0.0
    """GEMMs save their inputs in the narrow type that they were cast to."""
    unfused_attention_in_fp32: Array = 0.0
    """Unfused attention computes and saves in fp32, with keys and values for every query head."""
    sorts_routing: Array = 0.0
    """Routing keeps the order of the copies and their weights, and its scores once, not twice."""
    weighs_inside_experts: Array = 0.0
    """Copies are weighted inside of their expert: what it returns is not kept for the weights."""
    separate_gated_matrices: Array = 0.0
    """The two input matrices of a gated MLP are apart."""
    fused_loss_in_place: Array = 0.0
    """The fused loss keeps half-precision logits, which it reads again."""
    keeps_mlp_products: Array = 1.0
    """Per-operator recompute keeps every second product of an MLP, else none (its time counts
    one of two in either case)."""
    recompute_keeps_products: Array = 0.0
    """Selective recompute of any module also recomputes what is neither a product nor attention."""
    half_precision_logits: Array = 0.0
    """Every loss keeps half-precision logits, and their gradient takes their place."""
    autograd_loss: Array = 0.0
    """The unfused loss is autograd's own: the fp32 logits and their gradient exist beside it."""
    unfused_attention_by_operator: Array = 0.0
    """Unfused attention runs operator by operator on repeated keys and values, and saves its
    probabilities in fp32 and in half precision."""
    drops_half_logits: Array = 0.0
    """Half-precision logits are gone when the backward pass begins."""
    keeps_chunk_logits: Array = 0.0
    """A loss in chunks has one of eight at a time and computes none again: it keeps the fp32
    logarithms of all, or if it is compiled their half-precision logits."""
    keeps_half_chunk_logits: Array = 0.0
    """It keeps the half-precision logits in either case."""
    differentiates_in_loss: Array = 0.0
    """A loss in chunks makes the gradients of its input and of the head as it goes, as Liger's."""
    chunks_head: Array = 0.0
    """Beside adapters head and unfused loss run chunk by chunk: all logits and their logarithms are
    kept, but gradients are those of one chunk."""
    # Weights, gradients and optimizer states.
    frees_gradients: Array = 0.0
    """There are no gradients between steps: they appear while activations go."""
    steps_by_list: Array = 0.0
    """The optimizer runs operator by operator over lists of tensors (torch's foreach)."""
    wide_table_states: Array = 0.0
    """States of word tables stay fp32 where others are quantized."""
    weights_are_masters: Array = 0.0
    """Weights are stored in the optimizer's precision; half precision exists while it is used."""
    offloads_shards: Array = 0.0
    """With ZeRO 3 the weights and their gradients go to the host where the optimizer does."""
    keeps_half_gradients: Array = 0.0
    """Half-precision gradients stay beside those that accumulate in fp32."""
    flat_gradients: Array = 0.0
    """Sharded weights of a layer are one flat tensor with a gradient, also for those of them that
    are frozen; it is whole while micro-batches accumulate."""
    packs_head: Array = 0.0
    """The head is packed in 4 bits where layers are."""
    plain_scales: Array = 0.0
    """Scales of weights of 4 bits are fp32, not quantized themselves."""
    keeps_cast_weights: Array = 0.0
    """What was cast of a weight to fp8 or fp4 is kept for all micro-batches of a step."""
    placeholder_gradients: Array = 0.0
    """Autograd gets a half-precision placeholder for each shape of weight gradient."""
    gathers_cast_weights: Array = 0.0
    """Weights that train in fp8 are gathered in fp8."""
    gathers_root_weights: Array = 0.0
    """Sharded word table and head are gathered for the whole step, not with a layer."""
    gathers_by_matrix: Array = 0.0
    """Sharded weights are gathered, and gradients reduced, matrix by matrix."""
    gathers_experts_together: Array = 0.0
    """Experts of a layer are one matrix for that."""
    gathers_next_matrix: Array = 0.0
    """What is gathered ahead is the next matrix, not the next layer."""
    most_live_parameters: Array = float("inf")
    """Parameters gathered ahead of their use, at most."""
    keeps_gathered_weights: Array = 0.0
    """Gathered weights may stay between micro-batches, which a pipeline needs."""
    reduces_after_pipeline: Array = 0.0
    """Under a pipeline sharded gradients are reduced after the last micro-batch."""
    reduces_half_gradients: Array = 0.0
    """Gradients are widened after they are reduced: no wider copy of a whole one exists."""
    reduces_by_block: Array = 0.0
    """Gradients are reduced block by block, not in buckets of a fixed size."""
    ddp_bucket_bytes: Array = 0.0
    """Gradients that are not sharded are reduced in buckets of so many bytes of weights."""
    reduces_whole_bf16_gradients: Array = 0.0
    """With ZeRO-1 and bf16 every rank gets all reduced gradients."""
    flat_buckets: Array = 0.0
    """Gradients are copied into flat buckets to be reduced, and weights come back in them."""
    whole_table_gradient: Array = 0.0
    """The gradient of a word table that is split by rows exists for all rows."""
    copies_sharded_parameters: Array = 0.0
    """Sharded weights are copied out of a gathered buffer, gradients into one."""
    gathers_sharded_matrices: Array = 0.0
    """Muon gathers every matrix on all of its ranks; else some whole ones are each rank's own."""
    measured_wrapper: Array = 0.0
    """Its data-parallel wrapper is the one that a calibration measures."""
    # Pipelines.
    scatters_messages: Array = 0.0
    """Tensor-parallel ranks each send a part of a message that all of them hold."""
    messages_one_way: Array = 0.0
    """Sending and receiving follow each other."""
    keeps_sent_outputs: Array = 0.0
    """What was sent stays until its gradient comes back."""
    buffers_every_message: Array = 0.0
    """There is a buffer for each micro-batch of a step, each way."""
    # The allocator.
    gemm_workspaces: Array = 1.0
    """Workspaces of cuBLAS."""
    expandable_segments: Array = 0.0
    """Segments of the allocator grow, so that little is lost between them."""
    gaps_of_logits: Array = 0.0
    """Layers leave few gaps between tensors, and logits as much as they are."""
    # Recompute.
    leaves_out_last_product: Array = 0.0
    """A layer that is computed again leaves out its last product, which no backward pass reads."""
    # What it can run.
    recomputes_operators: Array = 0.0
    """Selective recompute may name operators (`op`)."""
    whole_interleaved_rounds: Array = 0.0
    """Interleaving takes a multiple of pp micro-batches."""
    needs_pp_micro_batches: Array = 0.0
    """1F1B takes at least pp micro-batches."""


@dataclass(frozen=True, kw_only=True)
class Runtime(Traits):
    """A framework's runtime of one time; lineage: whose published runs its answers are like.

    peaks_of: the runtime whose measured peaks of memory count for it; empty: its own.
    """

    name: str
    title: str
    version: str
    sources: tuple[str, ...]
    lineage: str
    peaks_of: str = ""


TRAITS = tuple(field.name for field in fields(Traits))
