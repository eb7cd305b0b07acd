"""Megatron-LM's arguments by their parsed names: the block that it prints."""

from __future__ import annotations

from planner.frameworks import get
from planner.frameworks.read_results import Reading

PRINTED = """\
[rank0] starting
------------------------ arguments ------------------------
  add_bias_linear ................................. False
  attention_dropout ............................... 0.0
  bf16 ............................................ True
  context_parallel_size ........................... 1
  data_parallel_size .............................. 8
  ffn_hidden_size ................................. 4096
  global_batch_size ............................... 256
  group_query_attention ........................... True
  hidden_dropout .................................. 0.0
  hidden_size ..................................... 1024
  max_position_embeddings ......................... 4096
  micro_batch_size ................................ 2
  num_attention_heads ............................. 16
  num_layers ...................................... 24
  num_query_groups ................................ 4
  overlap_grad_reduce ............................. True
  overlap_p2p_comm ................................ True
  padded_vocab_size ............................... 50304
  params_dtype .................................... torch.bfloat16
  pipeline_model_parallel_size .................... 2
  position_embedding_type ......................... rope
  recompute_granularity ........................... None
  seq_length ...................................... 4096
  sequence_parallel ............................... True
  swiglu .......................................... True
  tensor_model_parallel_size ...................... 2
  untie_embeddings_and_output_weights ............. True
  use_distributed_optimizer ....................... True
  vocab_size ...................................... 50257
  world_size ...................................... 32
-------------------- end of arguments ---------------------
"""


def read(files: dict[str, str], size: int | None = 8) -> Reading:
    framework = get("megatron")
    assert framework.read is not None
    assert framework.recognises(files)
    return framework.read(files, size)


def test_the_block_that_megatron_prints() -> None:
    reading = read({"train.log": PRINTED}, None)
    plan, model = reading.plan, reading.model
    assert (plan.tp, plan.pp, plan.dp, plan.sequence_parallel) == (2, 2, 8, True)
    assert (plan.overlap_p2p, plan.micro_batch_size, plan.zero_stage) == (True, 2, 1)
    assert (model.num_layers, model.num_query_groups, model.vocab_size) == (24, 4, 50_257)
    assert (model.mlp_bias, model.gated_mlp) == (False, True)
    assert reading.refusals == ()
    assert next(one.line for one in reading.settings if one.name == "--hidden-size") == 12
