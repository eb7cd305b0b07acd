"""What each reader takes from the lines of its code base."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cost_models.plans import ParallelPlan
from planner import frameworks
from planner.documents.request import PlanRequest
from planner.frameworks.read_results import Setting
from planner.inputs.logs import RunLog, read_log
from planner.inputs.logs.megatron import words_of
from planner.inputs.logs.options import reading
from tests.fixtures.canonical import canonical
from tests.fixtures.frameworks import ALL_CASES, CASES, bundle

MEGATRON = [case for name, case in ALL_CASES if name == "megatron"]
# Option -> (printed name, printed value) where it is another.
PRINTED = {
    "--fp8-format": "fp8",
    "--fp4-format": "fp4",
    "--num-virtual-stages-per-pipeline-rank": "virtual_pipeline_model_parallel_size",
}
OFF = {
    "--disable-bias-linear": "add_bias_linear",
    "--no-overlap-p2p-communication": "overlap_p2p_comm",
}


def printed(settings: tuple[Setting, ...], world: int) -> dict[str, tuple[str, int]]:
    """The argument block that Megatron prints of these options."""
    rows: dict[str, str] = {"world_size": str(world)}
    for one in settings:
        name = PRINTED.get(one.name, one.name.removeprefix("--").replace("-", "_"))
        if one.name in OFF:
            rows[OFF[one.name]] = "False"
        elif one.value is None and name.startswith("no_"):
            rows[name.removeprefix("no_")] = "False"
        elif one.value is None:
            rows[name] = "True"
        else:
            rows[name] = one.value if isinstance(one.value, str) else repr(list(one.value))
    return {name: (text, line) for line, (name, text) in enumerate(rows.items(), 10)}


@pytest.mark.parametrize("case", MEGATRON)
def test_block_is_read_as_its_script(case: str) -> None:
    """Options printed and read back: the same model, training and plan, at the log's lines."""
    request, plan = CASES["megatron"][case]
    assert isinstance(request, PlanRequest)
    assert isinstance(plan, ParallelPlan)
    read = frameworks.get("megatron").read
    assert read is not None
    whole = read(bundle("megatron", case).files, None)
    options = tuple(one for one in whole.settings if "-" in one.name[2:] or "_" not in one.name)
    found = reading("megatron-lm", printed(options, plan.accelerators), "x.log", plan.accelerators)
    assert found.model == whole.model
    assert canonical(found.plan, found.model) == canonical(whole.plan, whole.model)
    assert found.training.model_dump(exclude={"tokens"}) == whole.training.model_dump(
        exclude={"tokens"}
    )
    layers = found.find("--num-layers") or found.find("--hybrid-layer-pattern")
    assert layers is not None
    assert (layers.file, layers.line >= 10) == ("x.log", True)


# What core 0.12 prints beside what a launch gives: defaults of other features.
DEFAULTS = """
attention_backend AttnBackend.auto | attention_dropout 0.1 | bias_gelu_fusion True |
ckpt_format torch_dist | clip_grad 1.0 | config_logger_dir | consumed_train_samples 0 |
context_parallel_size 1 | cp_comm_type ['p2p'] | cross_entropy_fusion_impl native |
cross_entropy_loss_fusion False | data_parallel_sharding_strategy no_shard |
data_parallel_size 4 | decoder_first_pipeline_num_layers None | deprecated_use_mcore_models False |
encoder_num_layers 12 | encoder_seq_length 512 | exp_avg_dtype torch.float32 |
exp_avg_sq_dtype torch.float32 | expert_model_parallel_size 1 | expert_tensor_parallel_size 2 |
ffn_hidden_size 3072 | fp16 True | bf16 False | fp8 None | fp8_recipe delayed |
group_query_attention False | num_query_groups 1 | hidden_dropout 0.1 |
hybrid_attention_ratio 0.0 | hybrid_mlp_ratio 0.0 | hybrid_override_pattern None |
is_hybrid_model False | kv_channels 64 | kv_lora_rank 32 | log_interval 1 |
main_grads_dtype torch.float32 | main_params_dtype torch.float32 | mamba_head_dim 64 |
masked_softmax_fusion True | max_position_embeddings 512 | mock_data False | moe_layer_freq 1 |
moe_router_topk 2 | moe_token_dispatcher_type allgather | mtp_num_layers None |
multi_latent_attention False | normalization LayerNorm | num_attention_heads 12 |
num_distributed_optimizer_instances 1 | num_experts None | num_layers 12 | hidden_size 768 |
num_layers_per_virtual_pipeline_stage None | num_virtual_stages_per_pipeline_rank None |
optimizer adam | optimizer_cpu_offload False | optimizer_offload_fraction 1.0 |
overlap_grad_reduce False | overlap_p2p_comm False | pipeline_model_parallel_size 1 |
position_embedding_type learned_absolute | q_lora_rank None | qk_head_dim 128 |
rampup_batch_size None | recompute_granularity None | recompute_modules None |
recompute_num_layers None | retro_project_dir None | rotary_base 10000 | rotary_percent 1.0 |
save /data/checkpoint | seq_length 512 | sequence_parallel True | split 949,50,1 |
squared_relu False | swiglu False | tensor_model_parallel_size 2 |
tokenizer_type GPT2BPETokenizer | tokenizer_model None | tp_comm_overlap False |
train_iters 1000 | train_samples None | transformer_impl transformer_engine |
untie_embeddings_and_output_weights False | use_distributed_optimizer True |
use_flash_attn False | use_megatron_fsdp False | use_rotary_position_embeddings False |
use_torch_fsdp2 False | v_head_dim 128 | variable_seq_lengths False |
virtual_pipeline_model_parallel_size None | vocab_size None | micro_batch_size 1 |
global_batch_size 16 | world_size 8
"""


def test_a_block_full_of_defaults_is_the_plain_launch() -> None:
    rows = [row.split(maxsplit=1) for row in DEFAULTS.split("|")]
    block = [f"  {name} {'.' * 20} {''.join(value)}" for name, *value in rows]
    lines = ["------------------------ arguments ------------------------", *block]
    lines.append("-------------------- end of arguments ---------------------")
    lines.append(" > padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)")
    for number in range(1, 21):
        lines.append(
            f" [2025-04-13 23:41:{number:02d}] iteration {number:8d}/    1000 | consumed samples: "
            f"{number * 16:12d} | elapsed time per iteration (ms): 1000.0 | throughput per GPU "
            "(TFLOP/s/GPU): 40.5 | global batch size:    16 | lm loss: 5.0E+00 |"
        )
    found = read_log(lines, "core.log")
    assert found.code_base == "megatron-lm"
    reading = found.reading
    assert reading is not None
    assert reading.model.moe is None
    assert reading.model.num_query_groups == 12
    assert reading.model.vocab_size == 50257
    assert reading.model.tied_embeddings
    plan = reading.plan
    assert (plan.tp, plan.dp, plan.zero_stage, plan.recompute) == (2, 4, 1, "none")
    assert plan.sequence_parallel
    assert not plan.offload_optimizer
    assert not plan.overlap_grad_reduce
    assert reading.training.precision == "fp16"
    assert found.left_open == ()
    assert found.tflops_per_accelerator == 40.5
    assert found.tokens_per_s == 16 * 512


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("8", ("8",)),
        ("AttnBackend.auto", ("auto",)),
        ("<AttnBackend.flash: 1>", ("flash",)),
        ("torch.float32", ("fp32",)),
        ("['p2p']", ("p2p",)),
        ("[0, 1]", ("0", "1")),
        ("(4096, 0)", ("4096", "0")),
        ("[1, 2", ("[1, 2",)),
        ("0.1", ("0.1",)),
    ],
)
def test_printed_values_are_words_of_options(text: str, words: tuple[str, ...]) -> None:
    assert words_of(text) == words


def said(found: RunLog, *fields: str) -> dict[str, Any]:
    return {field: found.get(field) for field in fields}


CONFIG = """\
Config(general=GeneralArgs(project='debug',
                           run='small'),
       parallelism=ParallelismArgs(dp=2,
                                   pp=1,
                                   tp=4,
                                   pp_engine=<nanotron.engine.OneForwardOneBackwardPipelineEngine \
object at 0x7f>,
                                   tp_mode=<TensorParallelLinearMode.REDUCE_SCATTER: 2>,
                                   tp_linear_async_communication=True,
                                   recompute_layer=True),
       model=ModelArgs(model_config=Qwen2Config(hidden_size=2048,
                                                intermediate_size=8192,
                                                num_hidden_layers=16,
                                                num_attention_heads=32,
                                                num_key_value_heads=8,
                                                tie_word_embeddings=True,
                                                vocab_size=49152),
                       init_method=RandomInit(std=0.02),
                       dtype=torch.bfloat16),
       optimizer=OptimizerArgs(optimizer_factory=AdamWOptimizerArgs(name='adamW'),
                               zero_stage=1,
                               accumulate_grad_in_fp32=True),
       tokens=TokensArgs(sequence_length=4096,
                         train_steps=100,
                         micro_batch_size=2,
                         batch_accumulation_per_replica=8))"""


def test_nanotron_s_printed_config_is_its_yaml() -> None:
    prefix = "08/31/2024 14:37:22 [INFO|DP=0|PP=0|TP=0]: "
    lines = [prefix + line for line in CONFIG.splitlines()]
    for number in range(1, 21):
        lines.append(
            f"{prefix}iteration: {number} / 100 | elapsed_time_per_iteration_ms: 1.25K | "
            "tokens_per_sec: 105K | tokens_per_sec_per_gpu: 13.1K | global_batch_size: 32 | "
            "lm_loss: 2.5 | model_tflops_per_gpu: 250"
        )
    found = read_log(lines, "nanotron.log")
    assert found.code_base == "nanotron"
    assert found.reading is not None
    assert said(found, "plan.tp", "plan.dp", "plan.recompute", "plan.zero_stage") == {
        "plan.tp": 4,
        "plan.dp": 2,
        "plan.recompute": "full",
        "plan.zero_stage": 1,
    }
    assert said(found, "model.num_layers", "model.vocab_size", "training.global_batch_size") == {
        "model.num_layers": 16,
        "model.vocab_size": 49152,
        "training.global_batch_size": 32,
    }
    assert (found.step.seconds, found.tflops_per_accelerator) == (1.25, 250.0)
    tensor = next(one for one in found.facts if one.field == "plan.tp")
    assert "tp=4" in lines[tensor.line - 1]


def titan(step: int, second: float, rate: str = "8,192") -> str:
    return (
        f"[rank0]:[titan] 2025-01-01 00:00:{second:06.3f} - root - INFO - step: {step:2d}  loss: "
        f"8.0  memory: 40.00GiB(50.00%)  tps: {rate}  tflops: 400.00  mfu: 40.00%"
    ).replace(".", ",", 1)


def test_torchtitan_s_rates_need_the_batch_else_its_clock_is_read() -> None:
    steps = [titan(n, 2.0 * n) for n in range(1, 21)]
    by_clock = read_log(steps, "titan.log")
    assert by_clock.step.basis == "time stamps of the steps"
    assert by_clock.step.seconds == pytest.approx(2.0)
    setup = [
        "[titan] Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]",
        "[titan] Building llama3 8B with ModelArgs(dim=4096)",
        "[titan] Applied full activation checkpointing to the model",
        "[titan] Applied FSDP to the model",
        "[titan] Training starts at step 1, with local batch size 2, global batch size 16, "
        "sequence length 8192, total steps 20 (warmup 2)",
    ]
    found = read_log([*setup, *steps], "titan.log")
    assert found.step.basis == "tokens/s of an accelerator"
    # 16 x 8192 tokens on 8 accelerators at 8192 tokens/s each.
    assert found.step.seconds == pytest.approx(2.0)
    assert said(found, "plan.tp", "plan.dp", "plan.recompute", "model.num_layers") == {
        "plan.tp": 2,
        "plan.dp": 4,
        "plan.recompute": "full",
        "model.num_layers": 32,
    }


def test_torchtitan_s_other_processes_are_left() -> None:
    lines = [
        line.replace("rank0", f"rank{rank}")
        for n in range(1, 21)
        for rank in (0, 1)
        for line in [titan(n, 2.0 * n, "8,192" if rank == 0 else "1")]
    ]
    assert read_log(lines, "titan.log").step.steps == 14


def test_deepspeed_s_rate_and_config() -> None:
    config = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 3},
        "bf16": {"enabled": True},
    }
    lines = ["[INFO] [config.py:900:print]   world_size ................... 8"]
    lines += ["[INFO] [config.py:906:print]   json = {"]
    lines += json.dumps(config, indent=4).splitlines()[1:]
    lines += [
        f"[INFO] [timer.py:1:stop] epoch=0/micro_step={n}/global_step={n}, RunningAvgSamplesPerSec"
        f"=30.0, CurrSamplesPerSec=32.0, MemAllocated=1GB, MaxMemAllocated=30.5GB"
        for n in range(1, 21)
    ]
    found = read_log(lines, "ds.log")
    assert found.code_base == "deepspeed"
    assert found.step.seconds == 2.0
    assert found.memory[0].bytes == 30.5 * 2**30
    assert said(found, "plan.zero_stage", "training.precision", "plan.dp", "accelerators") == {
        "plan.zero_stage": 3,
        "training.precision": "bf16",
        "plan.dp": 8,
        "accelerators": 8,
    }


def test_accelerate_says_its_processes() -> None:
    lines = [
        "INFO - __main__ - Distributed environment: DistributedType.FSDP  Backend: nccl",
        "Num processes: 8",
        "Mixed precision type: bf16",
        "INFO - __main__ -   Instantaneous batch size per device = 4",
        "INFO - __main__ -   Total train batch size (w. parallel, distributed & accumulation) = 64",
        "INFO - __main__ -   Gradient Accumulation steps = 2",
        "INFO - __main__ -   Total optimization steps = 600",
    ]
    lines += [
        f" {n / 6:3.0f}%|##   | {n}/600 [{n * 2 // 60:02d}:{n * 2 % 60:02d}<05:00,  2.00s/it]"
        for n in range(600)
    ]
    found = read_log(lines, "accelerate.log")
    assert found.code_base == "accelerate"
    assert found.step.seconds == pytest.approx(2.0)
    assert said(found, "accelerators", "plan.micro_batch_size", "training.precision") == {
        "accelerators": 8,
        "plan.micro_batch_size": 4,
        "training.precision": "bf16",
    }


def test_trainer_s_state_gives_a_mean_and_says_so() -> None:
    state = {
        "global_step": 200,
        "log_history": [
            {"loss": 1.5, "step": 100},
            {"train_runtime": 500.0, "train_steps_per_second": 0.4, "step": 200},
        ],
        "num_input_tokens_seen": 1_000_000,
        "train_batch_size": 8,
    }
    found = read_log(json.dumps(state, indent=2).splitlines(), "trainer_state.json")
    assert found.code_base == "trainer"
    assert (found.step.seconds, found.step.low_s, found.step.steps) == (2.5, None, 200)
    assert found.tokens_per_s == 2000.0
    assert any("mean over the run" in one for one in found.assumed)


def test_trainer_s_closing_metrics_in_a_table_give_a_mean() -> None:
    lines = [
        "***** train metrics *****",
        "  epoch                    =        3.0",
        "  train_loss               =     0.9123",
        "  train_runtime            = 0:08:20.00",
        "  train_samples_per_second =     12.800",
        "  train_steps_per_second   =      0.400",
    ]
    found = read_log(lines, "run.log")
    assert (found.code_base, found.step.seconds, found.step.steps) == ("trainer", 2.5, 200)


def test_trainer_s_rate_alone_gives_the_steps() -> None:
    line = "{'train_runtime': 500.0, 'train_steps_per_second': 0.4, 'train_loss': 1.2}"
    assert read_log([line], "run.log").step.seconds == 2.5


def test_maxtext_s_steps_and_settings() -> None:
    lines = [
        "Config param max_target_length: 2048",
        "Config param global_batch_size_to_train_on: 96",
        "Config param emb_dim: 2048",
        *(
            f"completed step: {step}, seconds: {seconds}, TFLOP/s/device: 141.5, "
            "Tokens/s/device: 9098.2, total_weights: 196608, loss: 11.3"
            for step, seconds in enumerate([44.9, 0.3, *[5.5] * 18])
        ),
    ]
    found = read_log(lines, "run.log")
    assert (found.code_base, found.step.seconds) == ("maxtext", 5.5)
    assert found.tflops_per_accelerator == 141.5
    facts = {one.field: one.value for one in found.facts}
    assert facts["training.seq_length"] == 2048
    assert facts["training.global_batch_size"] == 96
    assert facts["model.hidden_size"] == 2048


def test_mindspeed_is_known_by_its_options() -> None:
    block = ["------------------------ arguments ------------------------"]
    block += [
        f"  {name} ......................... {value}"
        for name, value in {
            "use_ascend_mc2": True,
            "num_layers": 8,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "seq_length": 2048,
            "max_position_embeddings": 2048,
            "micro_batch_size": 1,
            "global_batch_size": 16,
            "tensor_model_parallel_size": 8,
            "sequence_parallel": True,
            "bf16": True,
            "vocab_size": 32000,
            "world_size": 8,
        }.items()
    ]
    block += ["-------------------- end of arguments ---------------------"]
    steps = [
        f" iteration {n:5d}/ 100 | elapsed time per iteration (ms): 750.0 | global batch size: 16 |"
        for n in range(1, 21)
    ]
    found = read_log([*block, *steps], "npu.log")
    assert found.code_base == "mindspeed"
    assert found.reading is not None
    assert found.reading.framework == "mindspeed"
    assert said(found, "plan.overlap_tp", "plan.attention_kernel") == {
        "plan.overlap_tp": True,
        "plan.attention_kernel": "flash",
    }


def test_steps_after_a_pause_and_stragglers_are_left_out() -> None:
    times = dict.fromkeys(range(1, 41), 100.0) | {1: 900.0, 11: 120.0, 21: 160.0}
    lines = []
    for number, ms in times.items():
        lines.append(
            f" iteration {number:5d}/ 100 | elapsed time per iteration (ms): {ms} | "
            "global batch size: 16 |"
        )
        if number == 10:
            lines.append("validation loss at iteration 10 | lm loss value: 5.0E+00 |")
    found = read_log(lines, "megatron.log").step
    assert {one.reason: one.steps for one in found.left_out} == {
        "warm-up": 5,
        "after an evaluation or checkpoint": 1,
        "stragglers": 1,
    }
    assert (found.seconds, found.steps) == (0.1, 33)


def test_the_steps_of_llama_factorys_log_are_those_of_its_clock() -> None:
    """24 s for ten steps, and an elapsed time with days in it."""
    lines = []
    for place in range(1, 60):
        steps, seconds = 10 * place, 86_390 + 24 * place
        days, rest = divmod(seconds, 86_400)
        clock = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
        elapsed = f"{days} day, {clock}" if days else clock
        line = {"current_steps": steps, "total_steps": 600, "loss": 2.0, "elapsed_time": elapsed}
        lines.append(json.dumps(line))
    log = read_log(lines, "trainer_log.jsonl")
    assert log.step is not None
    assert log.step.seconds == pytest.approx(2.4, rel=0.02)
    assert log.code_base == "trainer"


def bar(step: int, seconds: int, total: int = 900) -> str:
    return (
        f"Train:  1%|  | {step}/{total} [{seconds // 60:02d}:{seconds % 60:02d}<9:00:00, 5.0s/it]"
    )


def test_the_bar_at_which_a_loss_is_reported_is_that_of_the_steps() -> None:
    """Without the Trainer's own word on the steps; ms-swift says them in its reports."""
    loads = ["Loading checkpoint shards: 50%|  | 1/2 [00:01<00:01, 1.0s/it]"]
    report = "{'loss': 1.5, 'grad_norm': 0.6, 'learning_rate': 0.0001, 'epoch': 0.0"
    swift = report + ", 'global_step/max_steps': '1/900'}"
    for first in (f"{bar(1, 5)} {report}}}", f"{swift}"):
        lines = [*loads, first, *(bar(step, 5 * step) for step in range(2, 400))]
        found = read_log(lines, "train.log")
        assert found.code_base == "trainer"
        assert found.step.seconds == pytest.approx(5.0)
    joined = "".join(bar(step, 5 * step) for step in range(2, 400))  # no carriage returns are left
    assert read_log([*loads, swift, joined], "train.log").step.seconds == pytest.approx(5.0)


def test_a_heading_is_no_configuration_of_bridge() -> None:
    report = "{'loss': 1.5, 'learning_rate': 0.0001, 'epoch': 0.0}"
    lines = ["Run Configuration", "  algorithm: grpo", "Training Configuration"]
    lines += [f"{bar(1, 5)} {report}", *(bar(step, 5 * step) for step in range(2, 400))]
    assert read_log(lines, "train.log").code_base == "trainer"


def test_a_coloured_line_is_text() -> None:
    report = "{'loss': 1.5, 'learning_rate': 0.0001, 'epoch': 0.0}"
    colours = "\x1b[93m \x1b[1m[W]\x1b[0m \x1b[93mx\x1b[0m"
    lines = [colours, f"{bar(1, 5)} {report}", *(bar(step, 5 * step) for step in range(2, 400))]
    assert read_log(lines, "train.log").code_base == "trainer"
