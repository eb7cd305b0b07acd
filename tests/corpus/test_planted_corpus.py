"""One fault planted at a time in public launch files: found by its own code and line.

The files are those of launches.csv, of the checkouts that tests.tools.checkouts makes.  None
of them has the planted finding before.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from planner.answers.lint.findings import Finding
from planner.answers.lint.lint import found_in
from planner.frameworks.sources import files_at
from planner.inputs.requests.parser import parse_cluster
from tests.corpus.test_corpus import path_of, rows

# Name -> repository and end of the path in launches.csv, the cluster.
FILES: dict[str, tuple[str, str, str]] = {
    "fsdp": (
        "NVIDIA/Megatron-LM",
        "megatron_fsdp/train_llama3_8b_fsdp_h100_fp8.sh",
        "1x8xh100-sxm",
    ),
    "release": ("NVIDIA/Megatron-LM", "gpt/gpt3_15b_8t_release/model_config.yaml", "8x8xh100-sxm"),
    "aws": (
        "awslabs/awsome-distributed-training",
        "slurm/llama3/pretrain-llama3-8b.sbatch",
        "2x8xb200-sxm-180gb",
    ),
    "neox": ("EleutherAI/gpt-neox", "configs/13B.yml", "8x8xa100-sxm"),
    "smollm": ("huggingface/smollm", "smollm1/config_smollm1_1B.yaml", "8x8xh100-sxm"),
    "titan": ("NousResearch/torchtitan", "llama3/train_configs/llama3_70b.toml", "8x8xh100-sxm"),
    "swift": ("modelscope/ms-swift", "megatron/mcore_bridge/full/moe.sh", "1x8xh100-sxm"),
    "bloom": ("bigscience-workshop/bigscience", "train/tr10-13B-ml/tr10-13B.slurm", "2x8xa100-sxm"),
    "primus": ("AMD-AGI/Primus", "configs/MI300X/llama3.1_70B-BF16-pretrain.yaml", "1x8xmi300x"),
    "bridge": (
        "AI-Hypercomputer/gpu-recipes",
        "nemo2602/64gpus-bf16-seq8192-gbs256/recipe/launcher.sh",
        "8x8xh100-sxm",
    ),
}


class Fault(NamedTuple):
    """A text and what replaces it; at: what stands on the finding's line, "" where none says it.

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
    # Sizes that do not divide.
    "heads": Fault("release", "heads: 48", "heads: 44", "heads_not_divisible", "error",
                   "tensor-model-parallel-size"),
    "key heads": Fault("release", "groups: 8", "groups: 6", "kv_heads", "error",
                       "tensor-model-parallel-size"),
    "heads of nanotron": Fault("smollm", "  tp: 1\n", "  tp: 5\n", "heads_not_divisible", "error",
                               "tp: 5"),
    "heads of torchtitan": Fault("titan", "tensor_parallel_degree = 8",
                                 "tensor_parallel_degree = 3", "heads_not_divisible", "error",
                                 "tensor_parallel_degree"),
    "heads of NeoX": Fault("neox", '"model_parallel_size": 1', '"model_parallel_size": 16',
                           "heads_not_divisible", "error", "model_parallel_size"),
    "nodes": Fault("fsdp", "NUM_NODES=1", "NUM_NODES=2", "world_size", "error", "--n"),
    "layers of NeoX": Fault("neox", '"pipe_parallel_size": 1', '"pipe_parallel_size": 64',
                            "layers_not_divisible", "error", "pipe_parallel_size"),
    "world of torchtitan": Fault("titan", "replicate_degree = 1", "replicate_degree = 3",
                                 "world_size", "error", "degree"),
    "world of nanotron": Fault("smollm", "dp: 64", "dp: 48", "world_size", "error", "dp: 48"),
    "batch": Fault("aws", "GLOBAL_BATCH_SIZE:=512", "GLOBAL_BATCH_SIZE:=500", "batch_identity",
                   "error", "--global-batch-size"),
    "batch of swift": Fault("swift", "micro_batch_size 1", "micro_batch_size 3", "batch_identity",
                            "error", "global_batch_size"),
    "batch of Primus": Fault("primus", "global_batch_size: 24", "global_batch_size: 25",
                             "batch_identity", "error", "global_batch_size"),
    "sequence over cp": Fault("aws", "SEQ_LENGTH:=8192", "SEQ_LENGTH:=8190", "cp_seq", "error",
                              "--context-parallel-size"),
    "chunks": Fault("bridge", "virtual_pipeline_model_parallel_size 5",
                    "virtual_pipeline_model_parallel_size 3", "vpp_layout", "error",
                    "virtual_pipeline_model_parallel_size"),
    "experts": Fault("swift", "expert_model_parallel_size 4", "expert_model_parallel_size 3",
                     "experts_not_divisible", "error", "expert_model_parallel_size"),
    "experts without sp": Fault("swift", "sequence_parallel true", "sequence_parallel false",
                                "sequence_parallel", "error", "tensor_model_parallel_size"),
    # What the framework refuses.
    "unknown option": Fault("fsdp", "--manual-gc", "--manual-gx", "unknown_option", "warning",
                            "--manual-gx"),
    "unknown key": Fault("primus", "eod_mask_loss", "eod_mask_lost", "unknown_key", "warning",
                         "eod_mask_lost"),
    "gather alone": Fault("aws", "    --overlap-grad-reduce\n", "", "framework_unsupported",
                          "error", "--overlap-param-gather"),
    "variables of attention": Fault("aws", "export NCCL_ASYNC",
                                    "export NVTE_FLASH_ATTN=0\nexport NCCL_ASYNC",
                                    "environment", "error", "NVTE_FLASH_ATTN"),
    "recompute twice": Fault("aws", "    --overlap-grad-reduce\n",
                             "    --overlap-grad-reduce\n    --recompute-granularity selective\n"
                             "    --recompute-num-layers 4\n", "recompute", "error",
                             "--recompute-num-layers"),
    "recompute without layers": Fault("swift", "    --recompute_num_layers 1 \\\n", "", "recompute",
                                      "error", "recompute_granularity"),
    # What runs out of memory.
    "long sequence": Fault("primus", "seq_length: 8192", "seq_length: 65536", "memory", "error",
                           "micro_batch_size"),
    "no shards": Fault("fsdp", '"optim_grads_params"', '"no_shard"', "memory", "error",
                       "--tensor-model-parallel-size"),
    "nothing recomputed": Fault("titan", 'mode = "full"', 'mode = "none"', "memory", "error",
                                "local_batch_size"),
    "ZeRO off": Fault("bloom", "ZERO_STAGE=1", "ZERO_STAGE=0", "distributed_optimizer_off",
                      "warning", "stage"),
    # What is slow.
    "no sequence parallelism": Fault("release", "  --sequence-parallel: true\n", "",
                                     "sequence_parallel_off", "warning", "tensor-model"),
    "no overlap": Fault("release",
                        "  --overlap-grad-reduce: true\n  --overlap-param-gather: true\n", "",
                        "gradient_reduce_exposed", "warning", ""),
    "tensor parallelism over nodes": Fault("release", "parallel-size: 8", "parallel-size: 16",
                                           "tp_across_nodes", "warning", "tensor-model"),
    "all recomputed": Fault("release", "  --bf16: true\n",
                            "  --bf16: true\n  --recompute-granularity: full\n"
                            "  --recompute-method: uniform\n  --recompute-num-layers: 1\n",
                            "recompute_needless", "warning", "recompute-granularity"),
    "plain attention": Fault("release", "  --bf16: true\n",
                             "  --bf16: true\n  --attention-backend: unfused\n",
                             "attention_unfused", "warning", "attention-backend"),
    "sums in 16 bits": Fault("release", "  --bf16: true\n",
                             "  --bf16: true\n  --grad-reduce-in-bf16: true\n",
                             "narrow_accumulation", "hint", "grad-reduce-in-bf16"),
    "states on every rank": Fault("smollm", "accumulate_grad_in_fp32: true",
                                  "accumulate_grad_in_fp32: false", "distributed_optimizer_off",
                                  "warning", "zero_stage"),
    "stale variable": Fault("fsdp", "GPUS_PER_NODE=8",
                            "export CUDA_LAUNCH_BLOCKING=1\nGPUS_PER_NODE=8",
                            "stale_variable", "warning", "CUDA_LAUNCH_BLOCKING"),
    "small micro-batch": Fault("smollm", "  micro_batch_size: 4", "  micro_batch_size: 1",
                               "micro_batch_small", "hint", "micro_batch_size"),
    "few micro-batches": Fault("bridge", "--global_batch_size 256", "--global_batch_size 16",
                               "few_micro_batches", "warning", "pipeline_model_parallel_size"),
    "fp8 without its layers": Fault("fsdp", "    --use-mcore-models\n",
                                    "    --use-mcore-models\n    --transformer-impl local\n",
                                    "ignored_option", "warning", "fp8"),
    "needless offload": Fault("release", "  --bf16: true\n",
                              "  --bf16: true\n  --optimizer-cpu-offload: true\n"
                              "  --use-precision-aware-optimizer: true\n",
                              "offload_needless", "warning", "optimizer-cpu-offload"),
}  # fmt: skip


def findings(
    launch: str, old: str = "", new: str = ""
) -> tuple[dict[str, str], tuple[Finding, ...]]:
    """The files of a launch with a text replaced, and what is found in them."""
    repository, end, cluster = FILES[launch]
    (row,) = (
        one
        for one in rows("launches.csv")
        if one["repository"] == repository and one["path"].endswith(end)
    )
    ((name, text),) = files_at([str(path_of(row))]).items()
    assert old in text
    files = {name: text.replace(old, new, 1)}
    return files, found_in(files, parse_cluster(cluster))[1]


def test_as_many_faults_of_as_many_kinds_as_there_should_be() -> None:
    assert len(FAULTS) >= 35
    assert len({fault.code for fault in FAULTS.values()}) >= 25
    assert {fault.launch for fault in FAULTS.values()} == set(FILES)
    assert len({repository for repository, _, _ in FILES.values()}) >= 9


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_planted_in_a_public_file_is_found(name: str) -> None:
    fault = FAULTS[name]
    told = {(one.code, one.text) for one in findings(fault.launch)[1]}
    files, found = findings(fault.launch, fault.old, fault.new)
    new = [one for one in found if one.code == fault.code and (one.code, one.text) not in told]
    assert {one.severity for one in new} == {fault.severity}
    lines = [files[one.file].splitlines()[one.line - 1] if one.line else "" for one in new]
    assert any(fault.at in line if fault.at else not line for line in lines), lines
