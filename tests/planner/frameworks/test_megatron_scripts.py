"""Scripts of Megatron-LM's own examples are read."""

from __future__ import annotations

import pytest

from planner import frameworks
from planner.documents.request import PlanRequest
from planner.frameworks.megatron import reader
from tests.fixtures.launches import cluster
from tests.planner.frameworks.test_megatron_reader import read, script

MEGATRON = frameworks.get("megatron")

GPT3 = """\
#!/bin/bash

# Runs the "175B" parameter model

export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
NUM_NODES=16
MASTER_ADDR=localhost
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))

CHECKPOINT_PATH=$1 #<Specify path>
DATA_PATH=$2 #<Specify path and file prefix>_text_document

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
)
GPT_MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --attention-backend auto # Can use (flash/fused/unfused/local)
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 1536
    --rampup-batch-size 16 16 5859375
    --train-iters 500000
    --weight-decay 0.1
    --fp16
    --lr 6.0e-5
    --lr-warmup-fraction .001
)
MODEL_PARALLEL_ARGS=(
\t--tensor-model-parallel-size 8
\t--pipeline-model-parallel-size 16
)
DATA_ARGS=(
    --data-path $DATA_PATH
    --vocab-file vocab.json
    --merge-file merges.txt
)
LOGGING_ARGS=(--save $CHECKPOINT_PATH --save-interval 10000 --eval-iters 10)

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    ${GPT_MODEL_ARGS[@]} \\
    ${TRAINING_ARGS[@]} \\
    ${MODEL_PARALLEL_ARGS[@]} \\
    ${DATA_ARGS[@]} \\
    ${LOGGING_ARGS[@]}
"""


def test_gpt3_175b_with_arrays() -> None:
    reading = read(GPT3)
    assert (reading.nodes, reading.accelerators_per_node) == (16, 8)
    assert reading.model.model_dump(exclude_defaults=True) == {
        "num_layers": 96,
        "hidden_size": 12288,
        "num_attention_heads": 96,
        "num_query_groups": 96,
        "head_dim": 128,
        "ffn_hidden_size": 49152,
        "vocab_size": 50257,
        "tied_embeddings": True,
        "qkv_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
        "norm_bias": True,
        "position": "learned",
        "max_position_embeddings": 2048,
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
    }
    assert reading.training.model_dump(exclude_defaults=True) == {
        "seq_length": 2048,
        "global_batch_size": 1536,
        "precision": "fp16",
        "gradient_dtype": "fp16",
        "gradient_reduce_dtype": "fp16",
        "tokens": 500000 * 1536 * 2048,
    }
    assert reading.plan.model_dump(exclude_defaults=True) == {
        "tp": 8,
        "pp": 16,
        "zero_stage": 0,
        "cross_entropy": "unfused",
        "overlap_grad_reduce": False,
        "overlap_param_gather": False,
    }
    assert reading.unknown == reading.refusals == ()
    assert {s.name for s in reading.unread} >= {"--weight-decay", "--data-path", "--save"}
    tensor = reading.find("--tensor-model-parallel-size")
    assert tensor is not None
    assert (tensor.value, tensor.line) == ("8", 39)
    assert "GPT2BPETokenizer has 50257 tokens" in reading.assumed
    nodes = reading.find("--nnodes")
    assert nodes is not None
    assert (nodes.value, nodes.line) == ("16", 17)


LLAMA = """\
#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=1
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
SIZE=${1:-70b}
TP_SIZE=${TP_SIZE:-4}
PP_SIZE=${PP_SIZE:-4}
DTYPE="fp8"
if [[ $SIZE == 70b ]]; then
    LAYERS=80; HIDDEN=8192; FFN=28672; HEADS=64
else
    LAYERS=32; HIDDEN=4096; FFN=14336; HEADS=32
fi
MODEL_ARGS=(
    --use-mcore-models
    --num-layers $LAYERS --hidden-size $HIDDEN --ffn-hidden-size $FFN
    --num-attention-heads $HEADS --group-query-attention --num-query-groups 8 --kv-channels 128
    --seq-length 8192 --max-position-embeddings 8192
    --position-embedding-type rope --rotary-base 1000000
    --attention-dropout 0.0 --hidden-dropout 0.0
    --swiglu --normalization RMSNorm --untie-embeddings-and-output-weights --disable-bias-linear
)
TRAINING_ARGS=(
    --micro-batch-size 1 --global-batch-size 128 --train-samples 1000
    --bf16 --grad-reduce-in-bf16 --cross-entropy-loss-fusion --lr 0.00015
)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=(
        "--fp8-format hybrid"
        "--fp8-param-gather"
    )
fi
PARALLEL=(
    --tensor-model-parallel-size $TP_SIZE --pipeline-model-parallel-size $PP_SIZE
    --num-layers-per-virtual-pipeline-stage 5
    --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
    --tp-comm-overlap --recompute-activations
)
if [ -n "${WANDB_API_KEY}" ]; then
    TRAINING_ARGS+=(--wandb-project llama)
fi
srun --mpi=pmix bash -c "
  torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES --rdzv_backend c10d \\
    pretrain_gpt.py ${MODEL_ARGS[*]} ${TRAINING_ARGS[*]} ${DTYPE_ARGS[*]} ${PARALLEL[*]} \\
    --data-path $DATA --tokenizer-type HuggingFaceTokenizer \\
    --tokenizer-model meta-llama/Meta-Llama-3-8B
"
"""


def test_llama_with_slurm_and_arrays_in_a_nested_shell() -> None:
    reading = read(LLAMA)
    assert (reading.nodes, reading.accelerators_per_node) == (4, 8)
    model = reading.model
    assert (model.num_layers, model.hidden_size, model.num_query_groups) == (80, 8192, 8)
    assert (model.gated_mlp, model.norm, model.position) == (True, "rmsnorm", "rope")
    assert (model.vocab_size, model.qkv_bias, model.tied_embeddings) == (128256, False, False)
    assert reading.training.model_dump(exclude_defaults=True) == {
        "seq_length": 8192,
        "global_batch_size": 128,
        "precision": "fp8",
        "fp8_recipe": "delayed",
        "fp8_param_gather": True,
        "gradient_dtype": "bf16",
        "gradient_reduce_dtype": "bf16",
        "tokens": 1000 * 8192,
    }
    assert reading.plan.model_dump(exclude_defaults=True) == {
        "tp": 4,
        "pp": 4,
        "dp": 2,
        "vpp": 4,
        "schedule": "interleaved-1f1b",
        "sequence_parallel": True,
        "recompute": "selective",
        "recompute_modules": ("core_attn",),
        "overlap_tp": True,
    }
    assert reading.refusals == reading.unknown == ()
    assert any("TP_SIZE, PP_SIZE" in text for text in reading.assumed)


MIXTRAL = """\
export CUDA_DEVICE_MAX_CONNECTIONS=1
NNODES=${SLURM_NNODES:-"1"}
MOE_ARGS=(--num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --moe-aux-loss-coeff 1e-2
  --moe-token-dispatcher-type alltoall --overlap-param-gather --overlap-grad-reduce)
torchrun --nproc_per_node 8 --nnodes $NNODES pretrain_gpt.py --use-mcore-models \\
  --disable-bias-linear --seq-length 4096 --max-position-embeddings 32768 --num-layers 32 \\
  --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --attention-dropout 0.0 \\
  --hidden-dropout 0.0 --normalization RMSNorm --position-embedding-type rope --swiglu \\
  --untie-embeddings-and-output-weights --group-query-attention --num-query-groups 8 \\
  --no-position-embedding --rotary-base 1000000 ${MOE_ARGS[@]} \\
  --tokenizer-type Llama2Tokenizer --tokenizer-model $1 --micro-batch-size 1 \\
  --global-batch-size 256 --bf16 --tensor-model-parallel-size 1 \\
  --pipeline-model-parallel-size 4 --expert-model-parallel-size 2 --use-distributed-optimizer \\
  --sequence-parallel
"""


def test_mixtral() -> None:
    reading = read(MIXTRAL)
    moe = reading.model.moe
    assert moe is not None
    assert moe.model_dump(exclude_defaults=True) == {
        "num_experts": 8,
        "top_k": 2,
        "expert_ffn_hidden_size": 14336,
    }
    assert (reading.model.vocab_size, reading.model.max_position_embeddings) == (32000, 32768)
    assert reading.plan.model_dump(exclude_defaults=True) == {
        "pp": 4,
        "dp": 2,
        "ep": 2,
        "cross_entropy": "unfused",
    }
    assert reading.refusals == ()
    request = reading.request(cluster(1, 8))
    assert isinstance(request, PlanRequest)
    assert MEGATRON.reasons(request, reading.plan) == ()


OLD = """\
DISTRIBUTED_ARGS="--nproc_per_node 8 --nnodes 2 --node_rank 0"
GPT_ARGS="--num-layers 24 --hidden-size 1024 --num-attention-heads 16 \\
    --seq-length 1024 \\
    --max-position-embeddings 1024 --swiglu \\
    --use-rotary-position-embeddings --use-flash-attn
    --micro-batch-size 4
    --bf16 --use-custom-fsdp --data-parallel-sharding-strategy optim_grads
"
GPT_ARGS="$GPT_ARGS --tensor-model-parallel-size 2 --DDP-impl local"
python -m torch.distributed.launch $DISTRIBUTED_ARGS \\
    pretrain_gpt.py $GPT_ARGS --vocab-size=50304
"""


def test_the_spellings_of_core_0_12_in_strings() -> None:
    reading = read(OLD)
    assert (reading.nodes, reading.accelerators_per_node) == (2, 8)
    assert (reading.model.position, reading.model.gated_mlp) == ("rope", True)
    assert (reading.model.ffn_hidden_size, reading.model.vocab_size) == (2688, 50304)
    assert (reading.plan.tp, reading.plan.dp, reading.plan.zero_stage) == (2, 8, 2)
    assert (reading.training.global_batch_size, reading.training.gradient_dtype) == (32, "fp32")
    assert [setting.name for setting in reading.unknown] == ["--DDP-impl"]
    assert reading.unknown[0].line == 9


@pytest.mark.parametrize(
    ("files", "own"),
    [
        ({"train.sh": GPT3}, True),
        ({"train.sh": LLAMA}, True),
        ({"a.txt": "hello", "b.sh": OLD}, True),
        ({"train.sh": script("--deepspeed --deepspeed_config x.json")}, False),
        ({"train.sh": script().replace("torchrun", "deepspeed")}, False),
        ({"train.sh": "# MindSpeed-LLM\nimport mindspeed\n" + script()}, False),
        ({"train.sh": script("--use-ascend-mc2")}, False),
        ({"train.sh": "echo hello"}, False),
        ({"train.sh": "'"}, False),
        ({}, False),
    ],
)
def test_recognises_its_own(files: dict[str, str], own: bool) -> None:
    assert reader.recognises(files) is own
