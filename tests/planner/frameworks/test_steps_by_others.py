"""Configurations of prime-rl and AReaL as people write them: defaults, tables, references."""

from __future__ import annotations

import pytest

from planner.frameworks.launch_files import GivenValues, LaunchFiles
from planner.frameworks.read_results import Reading, Unreadable
from planner.frameworks.sources import framework_of

# In the form of prime-rl's examples/advanced/qwen3-30b-a3b/tool.toml.
PRIME = """
seq_len = 32768

[model]
name = "Qwen/Qwen3-30B-A3B-Thinking-2507"

[deployment]
type = "multi_node"
num_train_nodes = 2
num_infer_nodes = 1

[slurm]

[trainer.model]
impl = "custom"
cp = 2

[trainer.model.ac]
freq = 1

[orchestrator]
batch_size = 256

[inference.vllm]
tensor_parallel_size = 8
"""
# In the form of AReaL's examples/tau2/config_30b_moe_airline.yaml.
AREAL = """
cluster: {n_nodes: 4, n_gpus_per_node: 8}
rollout:
  backend: sglang:d2t8
gconfig:
  n_samples: 8
  max_new_tokens: 8192
  max_tokens: 9216
tokenizer_path: ${actor.path}
actor:
  backend: megatron:(attn:d2p2t2c2|ffn:d1p2t2e4)
  path: Qwen/Qwen3-30B-A3B
  gradient_checkpointing: ${checkpointing}
  mb_spec:
    max_tokens_per_mb: 18432
  ppo_n_minibatches: 2
  optimizer: {type: adam}
checkpointing: true
train_dataset: {batch_size: 32, path: x, type: rl}
"""


def read(name: str, text: str) -> Reading:
    files = {name: text}
    reader = framework_of(files, None).read
    assert reader is not None
    return reader(LaunchFiles(files, GivenValues()), None)


def test_prime_rls_defaults() -> None:
    found = read("rl.toml", PRIME)
    plan = found.plan
    assert (found.nodes, found.accelerators_per_node) == (2, 8)
    assert (found.training.seq_length, found.training.global_batch_size) == (32_768, 256)
    assert (plan.dp, plan.cp, plan.cp_kind) == (8, 2, "all_gather")  # its ring
    assert plan.ep == 8  # auto: the ranks of a shard group, at most eight
    assert (plan.recompute, plan.compile) == ("full", True)
    assert plan.offload_optimizer is True
    assert plan.offload_activations is True
    assert "inference.vllm.tensor_parallel_size" in {one.name for one in found.unread}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("cp = 2", "cp = 3", r"rl.toml:16: trainer.model.cp times .* must divide the 16 ranks"),
        ('impl = "custom"', "lora.rank = 8", "trains adapters, which is not read"),
        ("batch_size = 256", "token_batch_size = 9", "orchestrator.batch_size is missing"),
        ("[slurm]", "[slurm", "is not TOML"),
    ],
)
def test_what_of_prime_rl_is_not_read(old: str, new: str, said: str) -> None:
    with pytest.raises(Unreadable, match=said):
        read("rl.toml", PRIME.replace(old, new))


def test_areals_degrees_and_references() -> None:
    found = read("grpo.yaml", AREAL)
    plan = found.plan
    assert (plan.tp, plan.pp, plan.cp, plan.dp) == (2, 2, 2, 2)
    assert (plan.ep, plan.etp, plan.sequence_parallel) == (4, 2, True)
    assert (found.training.seq_length, found.training.global_batch_size) == (9216, 128)
    assert plan.micro_batch_size == 2  # 18,432 tokens
    assert (plan.recompute, plan.recompute_method, plan.recompute_num_layers) == (
        "full", "uniform", 1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("megatron:(attn:d2p2t2c2|ffn:d1p2t2e4)", "fsdp:d16", "megatron alone is read"),
        ("megatron:(attn:d2p2t2c2|ffn:d1p2t2e4)", "megatron:x2", "must be like megatron:d4p1t2c1"),
        ("  gradient", "  use_lora: true\n  gradient", "trains adapters, which is not read"),
        ("${checkpointing}", "maybe", "gradient_checkpointing must be true or false"),
    ],
)
def test_what_of_areal_is_not_read(old: str, new: str, said: str) -> None:
    with pytest.raises(Unreadable, match=said):
        read("grpo.yaml", AREAL.replace(old, new))
