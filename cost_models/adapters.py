"""Low-rank adapters (LoRA): the matrices that they may adapt, by the names that users give.

Megatron's names stand for a whole matrix, as its modules hold it; Hugging Face's q_proj, gate_proj
and the like for the columns of one that Megatron fuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from cost_models.spec import MLASpec, ModelSpec

AdapterTarget = Literal[
    "linear_qkv", "linear_proj", "linear_fc1", "linear_fc2",
    "linear_q_proj", "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj",
    "linear_kv_up_proj",
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj",
]  # fmt: skip


@dataclass(frozen=True)
class Columns:
    """A share of the columns of some GEMMs' outputs; 0 if the model has no such matrix."""

    gemms: tuple[str, ...]
    part: str = ""
    share: Callable[[ModelSpec], float] = lambda model: 1.0


def _heads(model: ModelSpec, heads: int) -> float:
    return heads / (model.num_attention_heads + 2.0 * model.num_query_groups)


def _latent(model: ModelSpec, width: Callable[[MLASpec], int]) -> float:
    """The share of a width in the projection down to the latents of queries, keys and values."""
    mla = model.mla
    if mla is None:
        return 0.0
    return width(mla) / ((mla.q_lora_rank or 0) + mla.kv_lora_rank + mla.qk_rope_head_dim)


def _queries(low_rank: bool) -> Callable[[ModelSpec], float]:
    """Whether queries come from a latent, or from the hidden state."""

    def share(model: ModelSpec) -> float:
        return float(model.mla is not None and (model.mla.q_lora_rank is not None) == low_rank)

    return share


_FC1 = ("fc1", "shared fc1")
_FC2 = ("fc2", "shared fc2")
_QUERY_DOWN = Columns(("mla down",), "query", lambda m: _latent(m, lambda a: a.q_lora_rank or 0))
_KEY_DOWN = Columns(
    ("mla down",), "key", lambda m: _latent(m, lambda a: a.kv_lora_rank + a.qk_rope_head_dim)
)
_QUERY_UP = Columns(("mla q up",), "from latents", _queries(low_rank=True))
_QUERY = Columns(("mla q up",), "from hidden states", _queries(low_rank=False))
_KEY_UP = Columns(("mla kv up",))
# Megatron-Bridge peft/lora.py: its linear_fc1 and linear_fc2 are those of experts too; PEFT's names
# do not reach transformers' experts, which are parameters and no modules.
TARGETS: dict[str, tuple[Columns, ...]] = {
    "linear_qkv": (Columns(("qkv",)),),
    "linear_proj": (Columns(("attention out",)),),
    "linear_fc1": (Columns((*_FC1, "expert fc1")),),
    "linear_fc2": (Columns((*_FC2, "expert fc2")),),
    "linear_q_proj": (_QUERY,),
    "linear_q_down_proj": (_QUERY_DOWN,),
    "linear_q_up_proj": (_QUERY_UP,),
    "linear_kv_down_proj": (_KEY_DOWN,),
    "linear_kv_up_proj": (_KEY_UP,),
    "q_proj": (
        Columns(("qkv",), "query", lambda m: _heads(m, m.num_attention_heads)),
        _QUERY,
    ),
    "k_proj": (Columns(("qkv",), "key", lambda m: _heads(m, m.num_query_groups)),),
    "v_proj": (Columns(("qkv",), "value", lambda m: _heads(m, m.num_query_groups)),),
    "o_proj": (Columns(("attention out",)),),
    "gate_proj": (Columns(_FC1, "gate", lambda m: 0.5 * m.gated_mlp),),
    "up_proj": (Columns(_FC1, "up", lambda m: 1.0 - 0.5 * m.gated_mlp),),
    "down_proj": (Columns(_FC2),),
    "q_a_proj": (_QUERY_DOWN,),
    "q_b_proj": (_QUERY_UP,),
    "kv_a_proj_with_mqa": (_KEY_DOWN,),
    "kv_b_proj": (_KEY_UP,),
}


def adapted(model: ModelSpec, targets: Iterable[str]) -> dict[str, tuple[float, ...]]:
    """The share of the columns of each GEMM with adapters that each of its adapters covers."""
    shares: dict[str, tuple[float, ...]] = {}
    for target in targets:
        for columns in TARGETS[target]:
            share = columns.share(model)
            for name in columns.gemms if share else ():
                shares[name] = (*shares.get(name, ()), share)
    return shares


def clashing(targets: Iterable[str]) -> tuple[str, ...]:
    """Two targets that adapt the same columns; empty if there are none."""
    for target, other in combinations(targets, 2):
        for a in TARGETS[target]:
            for b in TARGETS[other]:
                overlap = a.part == b.part or not (a.part and b.part)
                if overlap and set(a.gemms) & set(b.gemms):
                    return target, other
    return ()
