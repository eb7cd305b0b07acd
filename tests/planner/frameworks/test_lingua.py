"""Lingua's trainings by its YAML and the call that names it."""

from __future__ import annotations

import pytest

from planner.answers.lint.findings import ReadAnswer
from planner.answers.lint.lint import read
from planner.documents.problems import RequestError
from planner.inputs.requests.parser import parse_cluster

SEVEN = """\
steps: 100_000
grad_acc_steps: 2
distributed:
  fsdp_type: full_shard
  compile: true
  model_dtype: bf16
  selective_activation_checkpointing: false
  tp_size: 1
model:
  dim: 4096
  n_layers: 32
  n_heads: 32
  n_kv_heads: 8
  rope_theta: 100_000
  ffn_dim_multiplier: 1.3
  multiple_of: 1024
data:
  batch_size: 4
  seq_len: 4096
  tokenizer:
    name: tiktoken
    path: tokenizers/llama3/original/tokenizer.model
"""
CALL = "torchrun --nproc_per_node 8 -m apps.main.train config=apps/main/configs/own.yaml"


def found(text: str, call: str = "", nodes: int = 1) -> ReadAnswer:
    files = {"run.sh": call + "\n", "own.yaml": text} if call else {"own.yaml": text}
    return read(files, parse_cluster(f"{nodes}x8xh100-sxm"))


def test_the_model_has_the_width_that_lingua_computes() -> None:
    """Llama 3.1 8B's factor and step give its 14,336."""
    model = found(SEVEN).request["model"]
    assert (model["num_layers"], model["hidden_size"], model["ffn_hidden_size"]) == (
        32,
        4096,
        14336,
    )
    assert (model["num_query_groups"], model["vocab_size"], model["gated_mlp"]) == (8, 128256, True)
    usual = SEVEN.replace("  ffn_dim_multiplier: 1.3\n  multiple_of: 1024\n", "")
    assert found(usual).request["model"]["ffn_hidden_size"] == 11008


def test_batch_and_sharding() -> None:
    request = found(SEVEN, CALL).request
    assert request["training"] == {"seq_length": 4096, "global_batch_size": 64}
    plan = request["plan"]
    assert (plan["dp"], plan["zero_stage"], plan["micro_batch_size"]) == (8, 3, 4)
    assert plan["compile"] is True
    assert plan["reshard_after_forward"] is False
    assert "dp_shard" not in plan


def test_a_node_of_shards_and_copies_of_it() -> None:
    text = SEVEN.replace("  tp_size: 1\n", "  tp_size: 1\n  dp_shard: 8\n  dp_replicate: 2\n")
    plan = found(text, nodes=2).request["plan"]
    assert (plan["dp"], plan["dp_shard"], plan["zero_stage"]) == (16, 8, 3)


def test_words_of_the_call_override_the_file() -> None:
    words = " data.batch_size=1 distributed.selective_activation_checkpointing=true"
    request = found(SEVEN, CALL + words + " distributed.fsdp_type=no_shard").request
    assert request["training"]["global_batch_size"] == 16
    assert request["plan"]["recompute"] == "selective"
    assert request["plan"]["recompute_modules"] == ["op"]
    assert request["plan"].get("zero_stage") == 0


@pytest.mark.parametrize(
    ("old", "new", "tokens"),
    [
        ("tiktoken\n    path: tokenizers/llama3/original/tokenizer.model", "bytes", 258),
        ("path: tokenizers/llama3/original/tokenizer.model", "path: x", 128256),
        ("  n_heads: 32\n", "  n_heads: 32\n  vocab_size: 50000\n", 50000),
    ],
)
def test_vocabulary(old: str, new: str, tokens: int) -> None:
    answer = found(SEVEN.replace(old, new))
    assert answer.request["model"]["vocab_size"] == tokens
    assumed = any("is not in its path: 128256 tokens assumed" in one for one in answer.assumed)
    assert assumed == (tokens == 128256)


def test_keys_of_a_fork_are_named() -> None:
    """Those of the model may build another one, those of `distributed` are told."""
    with pytest.raises(RequestError, match="stem_layers"):
        found(SEVEN.replace("  n_heads: 32\n", "  n_heads: 32\n  stem_layers: [2, 4]\n"))
    with pytest.raises(RequestError, match="neither dim nor n_layers"):
        found(SEVEN.replace("  dim: 4096\n  n_layers: 32\n", ""))
    fork = SEVEN.replace("  tp_size: 1\n", "  tp_size: 1\n  sac_config: {mode: full}\n")
    answer = found(fork)
    assert [one.name for one in answer.unknown] == ["distributed.sac_config.mode"]
    assert any("not read: distributed.sac_config.mode full" in one for one in answer.assumed)


def test_a_call_alone_asks_for_its_file() -> None:
    with pytest.raises(RequestError, match="the YAML that config= names"):
        read({"run.sh": CALL}, parse_cluster("8xh100-sxm"))


def test_a_place_to_fill_in_is_a_text() -> None:
    """YAML takes what begins with two signs for a tag."""
    text = SEVEN.replace("path: tokenizers/llama3/original/tokenizer.model", "path: !!CHANGETHIS!!")
    assert found(text).request["model"]["num_layers"] == 32


def test_heads_that_do_not_divide_are_an_error_of_the_file() -> None:
    with pytest.raises(RequestError, match=r"own\.yaml"):
        found(SEVEN.replace("n_kv_heads: 8", "n_kv_heads: 7"))


@pytest.mark.parametrize(
    ("words", "ranks"), [("nodes=4 ngpu=8", 32), ("nodes=2", 16), ("ngpu=4", 4), ("", 8)]
)
def test_its_own_submitter_says_nodes_and_gpus(words: str, ranks: int) -> None:
    call = f"python -m lingua.stool script=apps.main.train config=own.yaml {words}"
    assert found(SEVEN, call).request["plan"]["dp"] == ranks
