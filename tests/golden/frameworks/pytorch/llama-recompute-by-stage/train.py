"""Train a decoder with PyTorch's own parallelism: pipelining, DTensor and FSDP2 on one DeviceMesh.

Nothing but torch 2.13 is needed, and the data are made up.  It runs on GPUs (NCCL), or on CPUs
(Gloo) where a process has no GPU of its own.  Only CONFIG differs from plan to plan; words
name=value on the command line replace entries of it:

    torchrun --nproc_per_node 8 train.py train_iters=100 learning_rate=3.0e-4

From the top: CONFIG, the mesh, the model, how one stage is split, one step, the run.
"""

import ast
import json
import os
import resource
import sys
import time
import zlib
from functools import partial
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed._functional_collectives import (
    all_gather_single_autograd,
    all_to_all_single_autograd,
)
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

# Not part of the plan and left at the default: set by hand what the model's config.json
# says otherwise.
#   norm epsilon: norm_epsilon (1e-5)
#   rotary base: rotary_base (10000)
#   share of a head that rotates: all of it, no entry
#   rope scaling: no entry
#   activation: SwiGLU, no other gate
#   spread of the initial weights: init_std (0.02)
#   soft-capping of logits or scores, multipliers: no entry
CONFIG = {
    "stage_layers": [4, 4, 4, 4],  # 16 layers, by pipeline stage
    "hidden_size": 512,  # width of the residual stream
    "num_attention_heads": 16,  # query heads
    "num_query_groups": 4,  # key/value heads; each serves an equal share of the query heads
    "head_dim": 32,  # width of one head
    "ffn_hidden_size": 1792,  # width of the MLP
    "gated_mlp": True,  # SwiGLU, with two input projections; else GELU
    "vocab_size": 32000,  # words; the loss of a model that knows nothing is its logarithm
    "tied_embeddings": False,  # the output layer is the embedding
    "qkv_bias": False,  # bias of the query, key and value projections
    "attention_output_bias": False,  # bias of attention's output projection
    "mlp_bias": False,  # biases of the MLP
    "lm_head_bias": False,  # bias of the output layer
    "norm": "rmsnorm",  # kind of every norm
    "norm_bias": False,  # LayerNorm has a bias
    "embedding_norm": False,  # a norm right after the embedding
    "qk_norm": "none",  # norms on queries and keys: none, or over each head
    "position": "rope",  # how tokens know their place
    "max_position_embeddings": None,  # rows of a learned position table
    "hidden_dropout": 0.0,  # dropout of the residual stream
    "attention_dropout": 0.0,  # dropout of the attention scores
    "num_experts": 0,  # every MLP is dense
    "seq_length": 2048,  # tokens of one sequence
    "tp": 1,  # ranks that split every matrix
    # between matrices they split the tokens too: less memory, the same traffic
    "sequence_parallel": False,
    "cp": 1,  # ranks that split every sequence
    # attention over cp: a2a trades tokens for heads; all_gather gathers keys and values
    "cp_kind": "a2a",
    "pp": 4,  # ranks that split the layers; 1 stages on each
    "schedule": "1F1B",  # in which order stages take micro-batches
    "dp_replicate": 1,  # dp 4 = dp_replicate 1 x dp_shard 4: ranks that hold the same weights
    # dp 4 = dp_replicate 1 x dp_shard 4: ranks that share one copy of the weights, with cp 1
    "dp_shard": 4,
    "ep": 1,  # ranks that share out the experts, inside dp x cp x tp
    "zero_stage": 3,  # 3: weights, gradients, states sharded; 0: replicated
    # free gathered weights after each pass and gather them again, or keep them for the step
    "reshard_after_forward": False,
    "global_batch_size": 64,  # sequences per step = micro_batch_size 1 x 16 micro-batches x dp 4
    "micro_batch_size": 1,  # sequences that pass together
    "precision": "bf16",  # of weights and activations in use; fp32 to compare runs
    "gradient_reduce_dtype": "fp32",  # gradients are averaged in it
    "attention_kernel": "flash",  # flash: cuDNN's, or the next; flash2; unfused
    "recompute": "full",  # activations dropped, and computed again for the backward
    "recompute_modules": (),  # when selective: which
    "recompute_method": "block",  # when full: uniform, all layers; block, some
    "recompute_num_layers": 3,  # when full by block: first of a stage
    "recompute_layers": [3, 2, 1, 0],  # of each virtual stage, where they differ
    "compile": False,  # torch.compile each layer
    "optimizer": "adam",  # adam, sgd with momentum, adafactor or muon
    "norm_epsilon": 1e-05,  # NOT stated: set what the model's config.json says
    "rotary_base": 10000.0,  # NOT stated: set what the model's config.json says
    "init_std": 0.02,  # NOT stated: set what the model's config.json says
    "learning_rate": 0.001,  # PLACEHOLDER for the smoke run: set your own
    "gradient_clip": 1.0,  # PLACEHOLDER for the smoke run: largest norm of all gradients
    "seed": 1234,  # of weights and data, the same however the model is split
    "train_iters": 20,  # a smoke run: iterations of 131072 tokens
}

C = SimpleNamespace(**CONFIG)


def configure(words):
    """Words name=value replace entries of CONFIG."""
    for word in words:
        name, _, value = word.partition("=")
        if name not in CONFIG:
            sys.exit(f"{name} is no entry of CONFIG; there are {', '.join(CONFIG)}")
        setattr(C, name, value if isinstance(CONFIG[name], str) else ast.literal_eval(value))


# --- The mesh: every rank's place in the plan ----------------------------------------------------


def own_device():
    """A GPU where every process of this node has its own, else the CPU."""
    if torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def setup(device, model_device=None):
    """Take this process's place in the plan: what the rest of the script reads is set here.

    model_device is where modules are made; on "meta" they take no memory.
    """
    global DEVICE, MODEL_DEVICE, MESH, FSDP_MESH, DATA_MESH, EXPERT_MESH, ROTARY
    global RANK, PP_RANK, DP_RANK, CP_RANK, TP_RANK, DP, MICRO_BATCHES, TOKENS
    DEVICE, MODEL_DEVICE = device, model_device or device
    # Neighbouring ranks differ along tp, whose traffic is the heaviest, then cp, and so outwards.
    MESH = init_device_mesh(
        DEVICE.type,
        (C.pp, C.dp_replicate, C.dp_shard, C.cp, C.tp),
        mesh_dim_names=("pp", "dp_replicate", "dp_shard", "cp", "tp"),
    )
    # Weights are the same on ranks that differ by their data: by the sequences (dp) or by the part
    # of each sequence (cp).  So they are sharded, and gradients averaged, over dp and cp together.
    FSDP_MESH = MESH["dp_shard", "cp"]._flatten("fsdp")
    DATA_MESH = MESH["dp_replicate", "dp_shard", "cp"]._flatten("data")
    RANK = dist.get_rank()
    PP_RANK, CP_RANK, TP_RANK = (MESH.get_local_rank(name) for name in ("pp", "cp", "tp"))
    DP = C.dp_replicate * C.dp_shard
    DP_RANK = MESH.get_local_rank("dp_replicate") * C.dp_shard + MESH.get_local_rank("dp_shard")
    MICRO_BATCHES = C.global_batch_size // (C.micro_batch_size * DP)
    TOKENS = C.seq_length // C.cp  # of one sequence that this rank computes
    if C.num_experts:
        # Experts have a mesh of their own over the same ranks.  Neighbours share them out (ep); the
        # others of a stage have the same ones, for other data or, over tp, for other tokens.
        same, replicas = DP * C.cp * C.tp // C.ep, C.dp_replicate if C.zero_stage else 1
        EXPERT_MESH = init_device_mesh(
            DEVICE.type,
            (C.pp, replicas, same // replicas, C.ep),
            mesh_dim_names=("pp", "dp_replicate", "fsdp", "ep"),
        )
    ROTARY = rotary_table(C.head_dim) if C.position == "rope" else None


# --- The model -----------------------------------------------------------------------------------


def make_norm(width):
    if C.norm == "rmsnorm":
        return nn.RMSNorm(width, eps=C.norm_epsilon)
    return nn.LayerNorm(width, eps=C.norm_epsilon, bias=C.norm_bias)


def positions():
    """Where in their sequence the tokens of this rank stand.

    Where keys and values are gathered over cp a rank has an early part of the sequence and a late
    one: late tokens attend to many others, early ones to few, so that all ranks have equal work.
    """
    if C.cp > 1 and C.cp_kind == "all_gather":
        chunks = torch.arange(C.seq_length, device=DEVICE).chunk(2 * C.cp)
        return torch.cat((chunks[CP_RANK], chunks[-1 - CP_RANK]))
    return torch.arange(TOKENS, device=DEVICE) + CP_RANK * TOKENS


def rotary_table(width):
    """Cosine and sine of the angles by which the tokens of this rank rotate, for all layers."""
    frequency = C.rotary_base ** -torch.arange(0, 1, 2 / width, device=DEVICE)
    angle = torch.outer(positions(), frequency)[:, None, :]
    return angle.cos(), angle.sin()


def rotate(x, table=None):
    """Rotary positions: x has (batch, tokens, heads, head_dim); pairs are d and d + head_dim/2."""
    left, right = x.float().chunk(2, -1)
    cos, sin = table or ROTARY
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1).to(x.dtype)


def all_to_all(x, split, join):
    """Context parallelism trades one dimension for another: split the one, join the other."""
    parts = torch.stack(x.chunk(C.cp, split))
    parts = all_to_all_single_autograd(parts, None, None, MESH["cp"].get_group())
    return torch.cat(parts.unbind(), join)


def all_gather(x):
    """Every rank's early part of the sequence and its late one, in the order of the sequence."""
    chunks = all_gather_single_autograd(x, 1, MESH["cp"].get_group()).chunk(2 * C.cp, 1)
    return torch.cat((*chunks[::2], *chunks[::-2]), 1)


ATTENTION = {
    "flash": [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION],
    "flash2": [SDPBackend.FLASH_ATTENTION],
    "unfused": [SDPBackend.MATH],
    "fp32 on a GPU": [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
    "no flash": [SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
}


def causal_mask(queries, keys, device):
    """Of queries that are the last of the keys; kernels of a GPU know it without the mask."""
    if device.type == "cuda":
        return causal_lower_right(queries, keys)
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def attend(q, k, v, mask=None):
    """Causal attention, all as (batch, tokens, heads, head_dim); the last query sees all keys.

    mask: added to the scores, where a query sees fewer.
    """
    causal = {"is_causal": True} if mask is None else {"attn_mask": mask}
    if q.size(1) < k.size(1):
        causal = {"attn_mask": causal_mask(q.size(1), k.size(1), q.device)}
    kernel, unequal = C.attention_kernel, v.size(-1) != q.size(-1)
    if q.is_cpu and (C.attention_dropout or unequal):  # the CPU's flash kernel has neither
        kernel = "unfused"
    elif q.is_cuda and C.precision == "fp32" and kernel != "unfused":  # and GPUs have none in fp32
        kernel = "fp32 on a GPU"
    elif q.is_cuda and (mask is not None or unequal) and kernel != "unfused":
        kernel = "no flash"
    with sdpa_kernel(ATTENTION[kernel], set_priority=True):
        return F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            dropout_p=C.attention_dropout,
            enable_gqa=k.size(2) < q.size(2),
            **causal,
        ).transpose(1, 2)


class CoreAttention(nn.Module):
    """Causal attention over the whole sequence, of which a rank has some tokens."""

    def forward(self, q, k, v):
        if C.cp == 1:
            out = attend(q, k, v)
        elif C.cp_kind == "a2a":  # from all heads of some tokens to some heads of all tokens
            out = attend(*(all_to_all(x, split=2, join=1) for x in (q, k, v)))
            out = all_to_all(out, split=1, join=2)
        else:  # each part of the queries attends to the keys up to its own end
            k, v = all_gather(k), all_gather(v)
            size = C.seq_length // (2 * C.cp)
            ends = (size * (CP_RANK + 1), size * (2 * C.cp - CP_RANK))
            parts = zip(q.chunk(2, 1), ends, strict=True)
            out = torch.cat([attend(part, k[:, :end], v[:, :end]) for part, end in parts], 1)
        return out.flatten(2)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        heads, groups = C.num_attention_heads * C.head_dim, C.num_query_groups * C.head_dim
        self.query = nn.Linear(C.hidden_size, heads, bias=C.qkv_bias)
        self.key = nn.Linear(C.hidden_size, groups, bias=C.qkv_bias)
        self.value = nn.Linear(C.hidden_size, groups, bias=C.qkv_bias)
        self.query_norm = make_norm(C.head_dim) if C.qk_norm == "head" else nn.Identity()
        self.key_norm = make_norm(C.head_dim) if C.qk_norm == "head" else nn.Identity()
        self.core = CoreAttention()
        self.output = nn.Linear(heads, C.hidden_size, bias=C.attention_output_bias)

    def forward(self, x):
        # How many heads follows from the width: a tensor-parallel rank has 1/tp of them.
        q, k, v = (
            linear(x).unflatten(-1, (-1, C.head_dim))
            for linear in (self.query, self.key, self.value)
        )
        q, k = self.query_norm(q), self.key_norm(k)
        if C.position == "rope":
            q, k = rotate(q), rotate(k)
        return self.output(self.core(q, k, v))


class MLP(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.up = nn.Linear(C.hidden_size, width, bias=bias)
        if C.gated_mlp:
            self.gate = nn.Linear(C.hidden_size, width, bias=bias)
        self.down = nn.Linear(width, C.hidden_size, bias=bias)

    def forward(self, x):
        if C.gated_mlp:
            return self.down(F.silu(self.gate(x)) * self.up(x))
        return self.down(F.gelu(self.up(x)))


def by_expert(x, weight, counts):
    """Each expert's product: counts[e] rows of x with the matrix of expert e."""
    weight = weight.to_local()
    if x.dtype == torch.bfloat16:  # in one kernel, which torch has in this precision only
        ends = torch.tensor(counts, device=x.device).cumsum(0, dtype=torch.int32)
        return F.grouped_mm(x, weight.transpose(1, 2), offs=ends)
    return torch.cat([F.linear(*pair) for pair in zip(x.split(counts), weight, strict=True)])


def sums(numbers, count):
    """Of so many neighbours each."""
    return [sum(numbers[i : i + count]) for i in range(0, len(numbers), count)]


def turn(x, sizes, columns):
    """Parts of x lie row by row in a table: the same column by column, and the parts' sizes."""
    order = [i for column in range(columns) for i in range(column, len(sizes), columns)]
    parts = x.split(sizes)
    return torch.cat([parts[i] for i in order]), [sizes[i] for i in order]


class Experts(nn.Module):
    """This rank's experts, their matrices stacked."""

    def __init__(self):
        super().__init__()
        count, width = C.num_experts // C.ep, C.expert_ffn_hidden_size
        outer = C.latent_size or C.hidden_size
        self.up = nn.Parameter(torch.empty(count, width, outer))
        if C.gated_mlp:
            self.gate = nn.Parameter(torch.empty(count, width, outer))
        self.down = nn.Parameter(torch.empty(count, outer, width))

    def forward(self, x, counts):
        up = by_expert(x, self.up, counts)
        act = F.silu(by_expert(x, self.gate, counts)) * up if C.gated_mlp else F.gelu(up)
        return by_expert(act, self.down, counts)


def expert_counts(chosen):
    """Tokens this rank has for each expert, and each rank of ep for each expert of this one.

    Numbers on the host, since they are sizes of messages and products: here a step waits.
    """
    sent = chosen.flatten().bincount(minlength=C.num_experts)[: C.num_experts]
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=EXPERT_MESH["ep"].get_group())
    return torch.stack((sent, received)).tolist()


class MoE(nn.Module):
    """Each token goes to the top_k experts of the highest scores; none is dropped.

    There is no loss that balances the experts.  Those after num_experts pass their tokens on.
    """

    def __init__(self):
        super().__init__()
        choices = C.num_experts + C.zero_experts
        self.router = nn.Linear(C.hidden_size, choices, bias=C.router_bias)
        self.experts = Experts()
        if C.latent_size:
            self.latent_in = nn.Linear(C.hidden_size, C.latent_size, bias=C.latent_bias)
            self.latent_out = nn.Linear(C.latent_size, C.hidden_size, bias=C.latent_bias)
        if C.shared_expert_ffn_hidden_size:
            self.shared = MLP(C.shared_expert_ffn_hidden_size, bias=False)
        if C.shared_expert_gate:
            self.shared_gate = nn.Linear(C.hidden_size, 1, bias=False)

    def exchange(self, x, sent, received):
        """The experts' outputs of rows in the order of the experts, wherever these are."""
        if C.ep == 1:
            return self.experts(x, sent)
        group, here = EXPERT_MESH["ep"].get_group(), C.num_experts // C.ep
        to_ranks, from_ranks = sums(sent, here), sums(received, here)
        x = all_to_all_single_autograd(x, from_ranks, to_ranks, group)
        x, sizes = turn(x, received, here)  # parts by rank and expert: now by expert and rank
        x = self.experts(x, sums(sizes, C.ep))
        x, _ = turn(x, sizes, C.ep)
        return all_to_all_single_autograd(x, to_ranks, from_ranks, group)

    def combine(self, rows, weights, order, tokens):
        """The sum of each token's experts; a copy for one that passes it on made no row."""
        if not C.zero_experts:
            rows = rows[order.argsort()].unflatten(0, (-1, C.top_k))
            return (weights.to(rows.dtype)[:, None] @ rows).squeeze(1)
        rows = rows * weights.to(rows.dtype).flatten()[order, None]
        out = rows.new_zeros(len(weights), rows.size(1))
        return out.index_put((tokens,), rows, accumulate=True)  # keeps no rows, as index_add does

    def forward(self, x):
        tokens = x.flatten(0, 1)
        scores = self.router(tokens).softmax(-1, dtype=torch.float32)
        weights, chosen = scores.topk(C.top_k)
        if C.top_k > 1:  # one alone keeps its score, or the router would learn nothing
            weights = weights / weights.sum(-1, keepdim=True)
        sent, received = expert_counts(chosen)
        order = chosen.flatten().argsort(stable=True)[: sum(sent)]
        inner = self.latent_in(tokens) if C.latent_size else tokens
        copied = order // C.top_k
        rows = self.exchange(inner[copied], sent, received)
        out = self.combine(rows, weights, order, copied)
        out = self.latent_out(out) if C.latent_size else out
        if C.zero_experts:
            passed = (weights * (chosen >= C.num_experts)).sum(-1, keepdim=True)
            out = out + tokens * passed.to(x.dtype)
        out = out.view_as(x)
        if C.shared_expert_ffn_hidden_size:
            shared = self.shared(x)
            if C.shared_expert_gate:
                shared = shared * self.shared_gate(tokens).sigmoid().view(*x.shape[:2], 1)
            out = out + shared
        return out


def has_experts(layer):
    """Whether a layer, counted from 0, is one of experts."""
    if not C.num_experts or layer < C.num_dense_layers:
        return False
    return (layer - C.layer_offset) % C.layer_frequency == 0


class Block(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.attention_norm, self.attention = make_norm(C.hidden_size), Attention()
        self.mlp_norm = make_norm(C.hidden_size)
        self.mlp = MoE() if has_experts(layer) else MLP(C.ffn_hidden_size, C.mlp_bias)

    def forward(self, x):
        x = x + F.dropout(self.attention(self.attention_norm(x)), C.hidden_dropout)
        return x + F.dropout(self.mlp(self.mlp_norm(x)), C.hidden_dropout)


class Stage(nn.Module):
    """Consecutive layers; the embedding stands before the first, norm and head after the last."""

    def __init__(self, index):
        super().__init__()
        self.blocks = nn.ModuleList()
        self.index = index
        self.is_first, self.is_last = index == 0, index == len(C.stage_layers) - 1
        if self.is_first:
            self.embedding = nn.Embedding(C.vocab_size, C.hidden_size)
            if C.position == "learned":
                self.positions = nn.Embedding(C.max_position_embeddings, C.hidden_size)
            if C.embedding_norm:
                self.embedding_norm = make_norm(C.hidden_size)
        if self.is_last:
            self.norm = make_norm(C.hidden_size)
            self.head = nn.Linear(C.hidden_size, C.vocab_size, bias=C.lm_head_bias)

    def embed(self, tokens):
        x = self.embedding(tokens)
        if C.position == "learned":
            here = positions()
            if C.sequence_parallel:  # the embedding gave each rank some of the tokens
                here = here.chunk(C.tp)[TP_RANK]
            x = x + self.positions(here[None])
        if C.embedding_norm:
            x = self.embedding_norm(x)
        return F.dropout(x, C.hidden_dropout)

    def forward(self, x):
        if self.is_first:
            x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.logits(x) if self.is_last else x

    def logits(self, x):
        return self.head(self.norm(x))


# --- How one stage is split ----------------------------------------------------------------------


def draw(weight, name):
    """Random weights that depend on their name alone, however the model is split."""
    torch.manual_seed(C.seed + zlib.crc32(name.encode()))
    nn.init.normal_(weight, std=C.init_std)


def initialise(make, prefix=""):
    """A new module with its weights; biases are 0, norms 1."""
    with MODEL_DEVICE:
        module = make()
    for name, part in module.named_modules(prefix=prefix):
        if isinstance(part, (nn.Linear, nn.Embedding)):
            draw(part.weight, name)
            if getattr(part, "bias", None) is not None:
                nn.init.zeros_(part.bias)
        if isinstance(part, Experts):
            first = EXPERT_MESH.get_local_rank("ep") * C.num_experts // C.ep
            for kind, weights in part.named_parameters():
                for number, weight in enumerate(weights.detach(), first):
                    draw(weight, f"{name}.{number}.{kind}")
    return module


def tensor_parallel(module):
    """Split matrices over tp: the first of a pair by its outputs, the second by its inputs.

    stream is how activations lie between blocks: whole on every rank, or with sequence parallelism
    each rank has some of the tokens.  What a module has no part of is left out of the plan.
    """
    if C.tp == 1:
        return
    stream = Shard(1) if C.sequence_parallel else Replicate()
    gather = PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(Replicate(),))
    columns, rows = ColwiseParallel(), RowwiseParallel(output_layouts=stream)
    by_head = SequenceParallel(sequence_dim=2, use_local_output=True)
    mlp = "mlp.shared" if isinstance(getattr(module, "mlp", None), MoE) else "mlp"
    plan = {
        "attention": gather, "attention.query": columns, "attention.key": columns,
        "attention.value": columns, "attention.output": rows,
        mlp: gather, f"{mlp}.up": columns, f"{mlp}.gate": columns, f"{mlp}.down": rows,
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        # The logits stay split by the vocabulary; the loss is computed on the parts.
        "head": ColwiseParallel(input_layouts=stream),
    }  # fmt: skip
    if C.qk_norm == "head":
        plan |= {"attention.query_norm": by_head, "attention.key_norm": by_head}
    if C.sequence_parallel:
        names = ("attention_norm", "mlp_norm", "positions", "embedding_norm", "norm")
        plan |= {name: SequenceParallel(use_local_output=True) for name in names}
        # Every rank has the router for its own tokens, and these go to whole experts.
        by_token = SequenceParallel(sequence_dim=0, use_local_output=True)
        by_token_names = "router", "shared_gate", "latent_in", "latent_out"
        plan |= {f"mlp.{name}": by_token for name in by_token_names}
    there = {name for name, _ in module.named_modules()}
    plan = {name: style for name, style in plan.items() if name in there}
    # Every rank has the whole module and keeps its own part of it: nothing is sent.
    parallelize_module(module, MESH["tp"], plan, src_data_rank=None)


def expert_parallel(experts):
    """Tell that the experts here are some of all, for counting them and for the gradient's norm."""
    for name, weight in list(experts.named_parameters()):
        part = DTensor.from_local(weight.detach(), EXPERT_MESH["ep"], [Shard(0)], run_check=False)
        setattr(experts, name, nn.Parameter(part))


def every_second_product(products, context, op, *args, **kwargs):
    """Per-operator recompute: keep attention, what was reduced, and every second matrix product."""
    if op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
        products[context.is_recompute] += 1
        keep = products[context.is_recompute] % 2 == 1
    else:
        name = op.name()
        keep = "scaled_dot_product" in name or "reduce_scatter" in name
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def selective_contexts():
    return create_selective_checkpoint_contexts(partial(every_second_product, [0, 0]))


def selective(block):
    """Keep the inputs of some parts, and run their forward again before their backward."""
    if "op" in C.recompute_modules:
        return checkpoint_wrapper(block, context_fn=selective_contexts)
    if "core_attn" in C.recompute_modules:
        for part in [part for part in block.modules() if hasattr(part, "core")]:
            part.core = checkpoint_wrapper(part.core)
    mlp = getattr(block, "mlp", None)
    if mlp is not None and ("moe" if isinstance(mlp, MoE) else "mlp") in C.recompute_modules:
        block.mlp = checkpoint_wrapper(mlp)
    return block


def whole(block, number):
    """Keep the input of a whole layer only: of all, or of the first ones of a stage."""
    every = C.recompute_method == "uniform" or number < C.recompute_num_layers
    return checkpoint_wrapper(block) if C.recompute == "full" and every else block


def data_parallel(module):
    """Weights are stored in fp32; half precision copies exist where and while they are used."""
    half = {"bf16": torch.bfloat16, "fp32": None}
    policy = MixedPrecisionPolicy(half[C.precision], half[C.gradient_reduce_dtype] or torch.float32)
    experts = isinstance(module, Experts)
    mesh, shards, everyone = MESH, FSDP_MESH, DATA_MESH
    if experts:
        mesh, shards, everyone = EXPERT_MESH, EXPERT_MESH["fsdp"], EXPERT_MESH["fsdp"]
    if C.zero_stage == 0:
        frozen = {weight for weight in module.parameters() if not weight.requires_grad}
        replicate(module, mesh=everyone, mp_policy=policy, ignored_params=frozen)
    else:
        fully_shard(
            module,
            mesh=mesh["dp_replicate", "fsdp"] if C.dp_replicate > 1 else shards,
            mp_policy=policy,
            reshard_after_forward=C.reshard_after_forward,
            # Experts are split inside their matrices: there may be fewer of them than ranks.
            shard_placement_fn=(lambda parameter: Shard(1)) if experts else None,
        )
    if experts:
        # An expert's gradient has the tokens of all its ranks of ep in it: the mean is over all
        # data, not over the ranks that add.  Gloo has no sum that scales, so the division stands
        # apart; where nothing is scattered it does so anyway, and would be done twice.
        module.set_gradient_divide_factor(DP * C.cp)
        scattered = C.zero_stage > 0 and shards.size() > 1
        module.set_force_sum_reduction_for_comms(scattered)


def build_stage(index):
    """One stage, split as planned.  Layer by layer: no rank ever holds the whole model."""
    C.recompute_num_layers = C.recompute_layers[index]
    start, count = sum(C.stage_layers[:index]), C.stage_layers[index]
    stage = initialise(partial(Stage, index))
    tensor_parallel(stage)
    if C.tied_embeddings:
        stage.head.weight = stage.embedding.weight
    for number in range(count):
        layer = start + number
        block = initialise(partial(Block, layer), f"blocks.{layer}")
        tensor_parallel(block)
        if has_experts(layer):
            expert_parallel(block.mlp.experts)
            data_parallel(block.mlp.experts)
        block = selective(block)
        if C.compile:
            block.compile()
        block = whole(block, number)
        data_parallel(block)
        stage.blocks.append(block)
    data_parallel(stage)
    return stage


def build_models():
    """This rank's stages: by turns, or there and back again where the schedule is a V."""
    count = len(C.stage_layers)
    mine = range(PP_RANK, count, C.pp)
    if C.schedule in ("ZBVZeroBubble", "DualPipeV"):
        mine = (PP_RANK, count - 1 - PP_RANK)
    return [build_stage(index) for index in mine]


def build_pipeline(models):
    """The order in which stages take micro-batches; None without pipeline."""
    if C.pp == 1:
        return None
    stages = [
        PipelineStage(model, model.index, len(C.stage_layers), DEVICE, group=MESH["pp"].get_group())
        for model in models
    ]
    make = get_schedule_class(C.schedule)
    many = issubclass(make, PipelineScheduleMulti)
    return make(stages if many else stages[0], MICRO_BATCHES, loss_fn=loss_of)


def orthogonal(matrix):
    """Five steps of Newton-Schulz pull the singular values to about one; stacks are many matrices."""
    tall = matrix.size(-2) > matrix.size(-1)
    x = matrix.mT if tall else matrix
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (2.0315 * gram @ gram - 4.775 * gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """As torch.optim.Muon, on whole matrices however weights are split; AdamW for what is none."""

    def __init__(self, matrices, others, lr, momentum=0.95, weight_decay=0.1):
        groups = [{"params": matrices}, {"params": others}]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.adam = torch.optim.AdamW(others, lr=lr, fused=True)
        self.adam.state = self.state

    @torch.no_grad()
    def step(self):
        self.adam.step()
        group = self.param_groups[0]
        for weight in group["params"]:
            state = self.state[weight]
            if not state:
                state["momentum"] = torch.zeros_like(weight)
            state["momentum"].lerp_(weight.grad, 1 - group["momentum"])
            update = weight.grad.lerp(state["momentum"], group["momentum"])
            update = self.update(update.bfloat16() if C.precision == "bf16" else update)
            larger = max(1, weight.size(-2) / weight.size(-1)) ** 0.5
            weight.mul_(1 - group["lr"] * group["weight_decay"])
            weight.add_(update, alpha=-group["lr"] * larger)

    @staticmethod
    def update(split):
        """Gathered on every rank, made orthogonal, and split again.  Experts stay where they are."""
        whole = [
            one if split.ndim == 3 and one.is_shard(0) else Replicate() for one in split.placements
        ]
        local = orthogonal(split.redistribute(placements=whole).to_local())
        return DTensor.from_local(
            local, split.device_mesh, whole, shape=split.shape, stride=split.stride()
        ).redistribute(placements=split.placements)


def build_optimizer(models):
    parameters = [parameter for model in models for parameter in model.parameters()]
    if C.optimizer == "adam":
        return torch.optim.AdamW(parameters, lr=C.learning_rate, fused=True)
    if C.optimizer == "muon":
        blocks = [parameter for model in models for parameter in model.blocks.parameters()]
        matrices = [parameter for parameter in blocks if parameter.ndim > 1]
        known = {id(parameter) for parameter in matrices}
        others = [parameter for parameter in parameters if id(parameter) not in known]
        return Muon(matrices, others, lr=C.learning_rate)
    # Tensor by tensor: torch 2.13's fused kernel of SGD fails on sharded weights, and Adafactor
    # would hold an estimate for each of them at once.
    if C.optimizer == "adafactor":
        return torch.optim.Adafactor(parameters, lr=C.learning_rate, foreach=False)
    return torch.optim.SGD(parameters, lr=C.learning_rate, momentum=0.9, foreach=False)


# --- One step ------------------------------------------------------------------------------------


def batch():
    """This rank's share of the batch: random tokens, to be learnt by heart."""
    mine = range(DP_RANK * C.global_batch_size // DP, (DP_RANK + 1) * C.global_batch_size // DP)
    size = (C.seq_length + 1,)
    draw = (torch.Generator().manual_seed(C.seed + number) for number in mine)
    sequences = torch.stack([torch.randint(C.vocab_size, size, generator=one) for one in draw])
    sequences, here = sequences.to(DEVICE), positions()
    return (sequences[:, here],), sequences[:, here + 1]


def loss_of(logits, targets):
    """Mean cross entropy; tensor-parallel ranks hold the logits of some words each."""
    logits = logits.flatten(0, 1).float()
    if C.tp == 1:
        return F.cross_entropy(logits, targets.flatten())
    logits = DTensor.from_local(logits, MESH["tp"], [Shard(1)])
    # A copy: schedules that split the backward pass detach the loss in place, and no view can be.
    return F.cross_entropy(logits, targets.flatten()).to_local().clone()


def accumulate(model, inputs, targets):
    """Forward and backward of every micro-batch, one after the other; their losses."""
    losses = []
    micro_batches = zip(*(one.chunk(MICRO_BATCHES) for one in (targets, *inputs)), strict=True)
    for number, (wanted, *some) in enumerate(micro_batches, 1):
        last = number == MICRO_BATCHES
        # Shards of gradients take every micro-batch; replicas wait for the last one.
        model.set_requires_gradient_sync(last or C.zero_stage > 0)
        model.set_reshard_after_backward(last or C.reshard_after_forward)
        losses.append(loss_of(model(*some), wanted))
        (losses[-1] / MICRO_BATCHES).backward()
    return losses


def clip(parameters):
    """Scale gradients so that their norm over the whole model is at most gradient_clip."""
    by_mesh = {}
    for gradient in (one.grad for one in parameters if one.requires_grad):
        by_mesh.setdefault(gradient.device_mesh, []).append(gradient)
    norms = [nn.utils.get_total_norm(gradients).full_tensor() for gradients in by_mesh.values()]
    square = sum((norm**2 for norm in norms), torch.zeros((), device=DEVICE))
    dist.all_reduce(square, group=MESH["pp"].get_group())
    scale = (C.gradient_clip / (square.sqrt() + 1e-6)).clamp(max=1.0)
    for gradients in by_mesh.values():
        for gradient in gradients:
            gradient.to_local().mul_(scale)


@loss_parallel()  # lets cross_entropy, and its backward, work on logits that are split
def forward_backward(models, pipeline, inputs, targets):
    """Gradients of the whole batch; the losses of its micro-batches, on ranks of the last stage."""
    if pipeline is None:
        return accumulate(models[0], inputs, targets)
    losses = []
    inputs = inputs if any(model.is_first for model in models) else ()
    wanted = targets if any(model.is_last for model in models) else None
    pipeline.step(*inputs, target=wanted, losses=losses, return_outputs=False)
    return losses


def train_step(models, pipeline, optimizer, inputs, targets):
    """Forward and backward of the batch, and one step of the optimizer; the mean loss."""
    losses = forward_backward(models, pipeline, inputs, targets)
    clip([parameter for model in models for parameter in model.parameters()])
    optimizer.step()
    optimizer.zero_grad()
    return mean_loss(losses)


def mean_loss(losses):
    """Over micro-batches and over the ranks of the last stage, which differ in their data."""
    loss = sum((one.detach() for one in losses), torch.zeros((), device=DEVICE))
    dist.all_reduce(loss)
    return loss.item() / (MICRO_BATCHES * DP * C.cp * C.tp)


# --- The run -------------------------------------------------------------------------------------


def count_parameters(parameters):
    """Of the whole model: a rank holds, or has its shards of, those of its stages."""
    number = torch.tensor(sum(parameter.numel() for parameter in parameters), device=DEVICE)
    dist.all_reduce(number, group=MESH["pp"].get_group())
    return number.item()


def peak_memory():
    """Bytes, of the rank that used most: of its GPU, or of its process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    if DEVICE.type == "cuda":
        peak = torch.cuda.max_memory_allocated()
    peak = torch.tensor(peak, device=DEVICE)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    return peak.item()


def say(text):
    """One voice for all ranks."""
    if RANK == 0:
        print(text, flush=True)


def main():
    configure(sys.argv[1:])
    setup(own_device())
    models = build_models()
    parameters = [parameter for model in models for parameter in model.parameters()]
    number = count_parameters(parameters)
    say(f"{number} parameters; {dist.get_world_size()} processes on {DEVICE.type}")
    pipeline, optimizer = build_pipeline(models), build_optimizer(models)

    torch.manual_seed(C.seed + RANK)  # of dropout
    inputs, targets = batch()
    losses, seconds = [], []
    for step in range(1, C.train_iters + 1):
        start = time.perf_counter()
        losses.append(train_step(models, pipeline, optimizer, inputs, targets))
        seconds.append(time.perf_counter() - start)
        say(f"step {step}: loss {losses[-1]:.6f}, {seconds[-1]:.3f} s")

    steady = seconds[1:] or seconds  # the first step also compiles and allocates
    mean = sum(steady) / len(steady)
    summary = {
        "steps": len(losses),
        "parameters": number,
        "losses": losses,
        "mean_step_s": mean,
        "tokens_per_s": C.global_batch_size * C.seq_length / mean,
        "peak_memory_bytes": peak_memory(),
    }
    say(json.dumps(summary))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
