"""One fault planted at a time in launches of nine frameworks: found by its own code and line."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from planner.answers.lint.findings import Finding
from planner.answers.lint.lint import found_in
from planner.frameworks.sources import files_at, framework_of, launch_files
from planner.inputs.requests.parser import parse_cluster

SCRIPTS = Path(__file__).parents[3] / "scripts"
# Name -> the framework, its files, the cluster.
LAUNCHES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "llama": ("megatron", ("llama3_70b.sh",), "16x8xh100-sxm"),
    "moe": ("megatron", ("deepseek_lite.sh",), "4x8xh100-sxm"),
    "gpt": ("megatron", ("gpt3_175b.sh",), "16x8xh100-sxm"),
    "deepspeed": ("deepspeed", ("ds_3d.sh", "ds_3d.json"), "16x8xh100-sxm"),
    "mindspeed": ("mindspeed", ("planted/mindspeed_8b.sh",), "2x8xascend-910b2"),
    "neox": ("gpt-neox", ("planted/neox_20b.yml",), "12x8xa100-sxm"),
    "primus": ("primus", ("planted/primus_8b.yaml",), "1x8xmi300x"),
    "titan": ("torchtitan", ("planted/titan_70b.toml",), "32x8xh100-sxm"),
    "bridge": ("megatron-bridge", ("planted/bridge_70b.sh",), "8x8xh100-sxm"),
    "fsdp": ("accelerate", ("planted/fsdp_8b.sh", "planted/fsdp_8b.yaml"), "2x8xh100-sxm"),
    "fsdp on H200": ("accelerate", ("planted/fsdp_8b.sh", "planted/fsdp_8b.yaml"), "2x8xh200"),
    "nanotron": ("nanotron", ("planted/nanotron_8b.yaml",), "4x8xh100-sxm"),
}
RECOMPUTE = "(--recompute-granularity selective --recompute-modules layernorm mlp)"
SHARDED = "    --use-distributed-optimizer\n    --overlap-grad-reduce\n    --overlap-param-gather\n"


class Fault(NamedTuple):
    """A text and what replaces it; at: what stands on the finding's line, "" where no line says it.

    code, severity: of the finding.
    """

    launch: str
    old: str
    new: str
    code: str
    severity: str
    at: str


# What is meant by each -> the fault.
FAULTS: dict[str, Fault] = {
    # Megatron-LM.
    "heads": Fault("gpt", "heads 96", "heads 90", "heads_not_divisible", "error", "--tensor-m"),
    "layers": Fault("llama", "--num-layers 80", "--num-layers 82", "layers_not_divisible", "error",
                    "--pipeline-model-parallel-size"),
    "chunks": Fault("llama", "rank 5", "rank 3", "vpp_layout", "error", "--num-virtual-stages"),
    "rounds": Fault("llama", "size 1024", "size 1000", "schedule_micro_batches", "error",
                    "--num-virtual-stages"),
    "batch": Fault("moe", "batch-size 1024", "batch-size 1000", "batch_identity", "error",
                   "--global-batch-size"),
    "ranks": Fault("llama", "-N 16", "-N 32", "world_size", "error", "--nnodes"),
    "sequence": Fault("llama", "--seq-length 8192", "--seq-length 8190", "cp_seq", "error",
                      "--tensor-model-parallel-size"),
    "experts": Fault("moe", "--num-experts 64", "--num-experts 60", "experts_not_divisible",
                     "error", "--expert-model-parallel-size"),
    "experts without sp": Fault("moe", "--tensor-model-parallel-size 1",
                                "--tensor-model-parallel-size 2", "sequence_parallel", "error",
                                "--tensor-model-parallel-size"),
    "no sp": Fault("llama", "    --sequence-parallel\n", "", "sequence_parallel_off", "warning",
                   "--tensor-model-parallel-size"),
    "no optimizer shards": Fault("llama", SHARDED, "    --overlap-grad-reduce\n",
                                 "distributed_optimizer_off", "warning", ""),
    "out of memory": Fault("llama", "micro-batch-size 1", "micro-batch-size 4", "memory", "error",
                           "--micro-batch-size"),
    "small micro-batch": Fault("moe", "batch-size 2\n", "batch-size 1\n", "micro_batch_small",
                               "hint", "--micro-batch-size"),
    "tp over nodes": Fault("llama", "--tensor-model-parallel-size 4",
                           "--tensor-model-parallel-size 16", "tp_across_nodes", "warning",
                           "--tensor-model-parallel-size"),
    "cp over nodes": Fault("llama", "    --overlap-param-gather\n",
                           "    --overlap-param-gather\n    --context-parallel-size 4\n",
                           "cp_across_nodes", "warning", "--context-parallel-size"),
    "ep over nodes": Fault("moe", "--expert-model-parallel-size 8",
                           "--expert-model-parallel-size 32", "ep_across_nodes", "warning",
                           "--expert-model-parallel-size"),
    "fp8 widths": Fault("llama", "--ffn-hidden-size 28672",
                        "--ffn-hidden-size 28680\n    --fp8-format hybrid", "fp8_shape", "error",
                        "--fp8-format"),
    "fp8 without its layers": Fault("llama", "--bf16)",
                                    "--bf16 --fp8-format hybrid --transformer-impl local)",
                                    "ignored_option", "warning", "--fp8-format"),
    "fp4 on Hopper": Fault("llama", "--bf16)", "--bf16 --fp4-format e2m1)",
                           "precision_unsupported", "error", "--fp4-format"),
    "two kinds of recompute": Fault("llama", RECOMPUTE,
                                    "(--recompute-granularity selective --recompute-method block "
                                    "--recompute-num-layers 2)", "recompute", "error",
                                    "--recompute-method"),
    "all recomputed": Fault("llama", RECOMPUTE,
                            "(--recompute-granularity full --recompute-method uniform "
                            "--recompute-num-layers 1)", "recompute_full", "warning",
                            "--recompute-granularity"),
    "connections": Fault("llama", "CONNECTIONS=1", "CONNECTIONS=8", "environment", "error",
                         "CUDA_DEVICE_MAX_CONNECTIONS=8"),
    "attention switched off": Fault("llama", "export OMP_NUM_THREADS=8",
                                    "export NVTE_FLASH_ATTN=0", "environment", "error",
                                    "NVTE_FLASH_ATTN"),
    "left from debugging": Fault("llama", "export OMP_NUM_THREADS=8",
                                 "export CUDA_LAUNCH_BLOCKING=1", "stale_variable", "warning",
                                 "CUDA_LAUNCH_BLOCKING"),
    "old variable": Fault("gpt", "\nGPUS_PER_NODE",
                          "\nexport NCCL_ASYNC_ERROR_HANDLING=1\nGPUS_PER_NODE",
                          "stale_variable", "hint", "NCCL_ASYNC_ERROR_HANDLING"),
    "slip of the pen": Fault("llama", "--swiglu", "--swigu", "unknown_option", "error", "--swigu"),
    "no chunks": Fault("llama", "    --num-virtual-stages-per-pipeline-rank 5\n", "",
                       "interleaving_unused", "hint", "--pipeline-model-parallel-size"),
    "narrow sums": Fault("llama", "--bf16)", "--bf16 --grad-reduce-in-bf16)",
                         "narrow_accumulation", "hint", "--grad-reduce-in-bf16"),
    "padding": Fault("llama", "divisible-by 128", "divisible-by 65536", "vocabulary_padding",
                     "hint", "--make-vocab-size-divisible-by"),
    "needless offload": Fault("llama", "    --use-distributed-optimizer\n",
                              "    --use-distributed-optimizer --optimizer-cpu-offload "
                              "--use-precision-aware-optimizer\n", "offload_needless", "warning",
                              "--optimizer-cpu-offload"),
    # The others.
    "DeepSpeed: two stages": Fault("deepspeed", "--zero-stage 1", "--zero-stage 3", "zero_stage",
                                   "error", "--zero-stage"),
    "DeepSpeed: two batches": Fault("deepspeed", "GB=1024", "GB=1020", "batch_identity", "error",
                                    "--global-batch-size"),
    "DeepSpeed: plain attention": Fault("deepspeed", "--use-flash-attn-v2", "",
                                        "attention_unfused", "warning", ""),
    "MindSpeed: ranks": Fault("mindspeed", "TP=4", "TP=16", "world_size", "error",
                              "--tensor-model-parallel-size"),
    "MindSpeed: no sp": Fault("mindspeed", "    --sequence-parallel\n", "",
                              "sequence_parallel_off", "warning", "--tensor-model-parallel-size"),
    "MindSpeed: no overlap": Fault("mindspeed", SHARDED, "", "gradient_reduce_exposed", "warning",
                                   ""),
    "NeoX: ZeRO 2 with a pipeline": Fault("neox", '"stage": 1', '"stage": 2', "zero_stage",
                                          "error", '"stage"'),
    "NeoX: needless recompute": Fault("neox", '"checkpoint_activations": false',
                                      '"checkpoint_activations": true', "recompute_needless",
                                      "warning", "checkpoint_activations"),
    "NeoX: plain attention": Fault("neox", '"flash"', '"global"', "attention_unfused", "warning",
                                   "attention_config"),
    "Primus: batch": Fault("primus", "batch_size: 128", "batch_size: 100", "batch_identity",
                           "error", "global_batch_size"),
    "Primus: out of memory": Fault("primus", "micro_batch_size: 2", "micro_batch_size: 8",
                                   "memory", "error", "micro_batch_size"),
    "Primus: unread key": Fault("primus", "lr: 1.0e-5", "norm_epsilon: 1.0e-6", "unknown_key",
                                "warning", "norm_epsilon"),
    "torchtitan: tp over nodes": Fault("titan", "tensor_parallel_degree = 8",
                                       "tensor_parallel_degree = 16", "tp_across_nodes",
                                       "warning", "tensor_parallel_degree"),
    "torchtitan: out of memory": Fault("titan", 'mode = "selective"', 'mode = "none"', "memory",
                                       "error", "local_batch_size"),
    "torchtitan: shards": Fault("titan", "shard_degree = -1", "shard_degree = 12", "world_size",
                                "error", "data_parallel_shard_degree"),
    "Bridge: chunks": Fault("bridge", "parallel_size=5", "parallel_size=6", "vpp_layout", "error",
                            "virtual_pipeline_model_parallel_size"),
    "Bridge: nodes": Fault("bridge", "--nnodes 8", "--nnodes 9", "world_size", "error",
                           "--nnodes"),
    "Bridge: no sp": Fault("bridge", "sequence_parallel=true", "sequence_parallel=false",
                           "sequence_parallel_off", "warning", "tensor_model_parallel_size"),
    "accelerate: mesh": Fault("fsdp", "dp_shard_size: 16", "dp_shard_size: 12", "world_size",
                              "error", "dp_shard_size"),
    "accelerate: whole copies": Fault("fsdp", "type: FSDP", "type: MULTI_GPU", "memory", "error",
                                      "distributed_type"),
    "accelerate: offload": Fault("fsdp on H200", "params: false", "params: true",
                                 "offload_needless", "warning", "fsdp_offload_params"),
    "nanotron: heads": Fault("nanotron", "tp: 2", "tp: 3", "heads_not_divisible", "error", "tp: 3"),
    "nanotron: no optimizer shards": Fault("nanotron", "zero_stage: 1", "zero_stage: 0",
                                           "distributed_optimizer_off", "warning", "zero_stage"),
    "nanotron: fp32 sums": Fault("nanotron", "accumulate_grad_in_fp32: false",
                                 "accumulate_grad_in_fp32: true", "zero_stage", "error",
                                 "zero_stage"),
}  # fmt: skip


@cache
def sound(launch: str) -> tuple[Finding, ...]:
    """What is found before anything is planted."""
    _, names, cluster = LAUNCHES[launch]
    return found_in(files_at([str(SCRIPTS / name) for name in names]), parse_cluster(cluster))[1]


@pytest.mark.parametrize("launch", LAUNCHES)
def test_nothing_but_hints_before(launch: str) -> None:
    framework, names, _ = LAUNCHES[launch]
    files = launch_files(files_at([str(SCRIPTS / name) for name in names]))
    assert framework_of(files, None).name == framework
    assert {one.severity for one in sound(launch)} <= {"hint"}
    assert len(sound(launch)) <= 2


def test_as_many_faults_of_as_many_kinds_as_there_should_be() -> None:
    assert len(FAULTS) >= 50
    assert len({fault.code for fault in FAULTS.values()}) >= 28
    assert {fault.launch for fault in FAULTS.values()} == set(LAUNCHES)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_by_its_code_and_line(name: str) -> None:
    fault = FAULTS[name]
    _, names, cluster = LAUNCHES[fault.launch]
    files = files_at([str(SCRIPTS / one) for one in names])
    (place,) = (one for one, text in files.items() if fault.old in text)
    assert files[place].count(fault.old) == 1
    files[place] = files[place].replace(fault.old, fault.new)
    found = found_in(files, parse_cluster(cluster))[1]
    told = sound(fault.launch)
    (one,) = (one for one in found if one.code == fault.code and one not in told)
    assert one.severity == fault.severity
    if fault.at:
        assert fault.at in files[one.file].splitlines()[one.line - 1]
    else:
        assert one.line == 0
        assert one.option
