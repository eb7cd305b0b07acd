"""Words of published tables: precision, schedule, recomputation, software."""

from __future__ import annotations

from typing import get_args

import pytest

from cost_models.catalog.hardware import accelerator
from cost_models.spec import TrainingSpec
from cost_models.spec.training import Part
from planner.evidence.published_runs.adapters import adapters_of
from planner.evidence.published_runs.labels import (
    at_its_peak,
    memory_quantity,
    precision_of,
    recipe_of,
    recompute_of,
    schedule_of,
)
from planner.evidence.published_runs.recipes import recipe_for, release_of
from planner.evidence.published_runs.runs import Run, run_of
from planner.evidence.published_runs.software import attention_kernel, gradient_dtypes, software_of


def row(**cells: str) -> Run:
    return run_of({"id": "r", **cells})


@pytest.mark.parametrize(
    ("label", "precision", "recipe"),
    [
        ("bf16", "bf16", "tensorwise"),
        ("BFloat16 mixed", "bf16", "tensorwise"),
        ("fp16", "fp16", "tensorwise"),
        ("16-mixed", "fp16", "tensorwise"),
        ("fp8", "fp8", "tensorwise"),
        ("BF16/FP8", "fp8", "tensorwise"),
        ("FP8 hybrid (delayed)", "fp8", "delayed"),
        ("FP8-CS", "fp8", "tensorwise"),
        ("FP8-DS", "fp8", "delayed"),
        ("FP8-MX", "fp8", "mxfp8"),
        ("MXFP8", "fp8", "mxfp8"),
        ("FP8-SC", "fp8", "blockwise"),
        ("fp8 block-wise", "fp8", "blockwise"),
        ("fp8 rowwise", "fp8", "rowwise"),
        ("NVFP4", "fp4", "tensorwise"),
    ],
)
def test_a_label_is_a_precision_and_a_recipe(label: str, precision: str, recipe: str) -> None:
    run = row(precision=label)
    assert precision_of(run, accelerator("gb200")) == (precision, [])
    assert recipe_of(run) == recipe


@pytest.mark.parametrize(
    ("label", "part", "precision"),
    [
        ("nvfp4", "h100", "fp8"),
        ("nvfp4", "a100", "bf16"),
        ("fp8", "a100", "bf16"),
        ("bf16", "v100", "fp16"),
        ("", "v100", "fp16"),
        ("fp16", "tpu-v5p", "bf16"),
    ],
)
def test_a_part_without_the_units_computes_in_the_next_wider(
    label: str, part: str, precision: str
) -> None:
    found, notes = precision_of(row(precision=label), accelerator(part))
    assert found == precision
    assert "matrix units" in notes[-1]


@pytest.mark.parametrize("label", ["tf32", "int8", "fp64"])
def test_other_precisions_are_refused(label: str) -> None:
    with pytest.raises(ValueError, match="is not modelled"):
        precision_of(row(precision=label), accelerator("h100"))


@pytest.mark.parametrize(
    ("label", "vpp", "schedule"),
    [
        ("", None, "1f1b"),
        ("", 4, "interleaved-1f1b"),
        ("1F1B", None, "1f1b"),
        ("1F1B", 2, "interleaved-1f1b"),
        ("1F1B or interleaved (not stated)", None, "1f1b"),
        ("Interleaved-1F1B", None, "interleaved-1f1b"),
        ("GPipe", None, "gpipe"),
        ("zero bubble", None, "zb-h1"),
        ("ZB-H2", None, "zb-h2"),
        ("ZBV", None, "zb-v"),
        ("DualPipe", None, "dualpipe"),
        ("DualPipeV", None, "dualpipe-v"),
        ("Hanayo", None, "hanayo"),
        ("LoopedBFS", None, "looped-bfs"),
        ("interleaved zero bubble", None, "interleaved-zero-bubble"),
        ("PipeDream-2BW", None, "pipedream-2bw"),
        ("V-Half", None, "v-half"),
        ("something new", None, "1f1b"),
    ],
)
def test_a_label_is_a_schedule(label: str, vpp: int | None, schedule: str) -> None:
    assert schedule_of(row(schedule=label), 8, vpp) == schedule


@pytest.mark.parametrize(
    ("label", "modes"),
    [
        ("none", ["none"]),
        ("0", ["none"]),
        ("no recompute", ["none"]),
        ("full", ["full"]),
        ("yes", ["full"]),
        ("selective", ["selective"]),
        ("unknown", ["none", "selective", "full", "full", "full"]),
        ("", ["none", "selective", "full", "full", "full"]),
    ],
)
def test_a_label_is_a_recomputation(label: str, modes: list[str]) -> None:
    choices = recompute_of(row(recompute=label), torch=False)
    assert [choice["recompute"] for choice in choices] == modes
    assert len({str(choice) for choice in choices}) == len(choices)


def test_what_a_row_leaves_open_is_what_the_software_does_by_default() -> None:
    assert recompute_of(row(recompute=""), torch=False, default="none") == [{"recompute": "none"}]
    (stated,) = recompute_of(row(recompute="full"), torch=False, default="none")
    assert stated["recompute"] == "full"


@pytest.mark.parametrize(
    ("notes", "modules"),
    [("remat_policy=minimal", ("core_attn",)), ("remat minimal_flash", ("layernorm",)),
     ("remat policy SAVE_DOT_ONLY (recompute element-wise only)", ("core_attn",)),
     ("remat policy SAVE_QKV_OUT_PROJ", ("core_attn", "mlp")),
     ("remat save_dot_except_mlpwi", ("core_attn", "mlp")),
     ("remat save_dot_with_context_except_mlp (MLP dots)", ("op",)),
     ("minimal example", ("op",))],
)  # fmt: skip
def test_a_policy_of_jax_is_the_modules_that_it_repeats(
    notes: str, modules: tuple[str, ...]
) -> None:
    (named,) = recompute_of(row(recompute="selective", notes=notes), torch=True)
    assert named["recompute_modules"] == modules


def test_named_modules_and_counted_layers_are_kept() -> None:
    (named,) = recompute_of(row(recompute="mla_up_proj, mlp"), torch=False)
    assert set(named["recompute_modules"]) == {"mla_up_proj", "mlp"}
    notes = "recipe recomputes layernorm+moe_act (+mlp on H100), not attention core; mla_up_proj"
    (named,) = recompute_of(row(recompute="selective", notes=notes), torch=False)
    assert set(named["recompute_modules"]) == {"layernorm", "moe_act"}
    (some,) = recompute_of(row(recompute="full, 4 layers"), torch=False)
    assert (some["recompute_method"], some["recompute_num_layers"]) == ("block", 4)


@pytest.mark.parametrize(
    ("stack", "year", "runtime"),
    [
        ("megatron-core-2025", "2025", "megatron"),
        ("megatron-bridge", "2025", "megatron"),
        ("megatron-bridge", "2026", "megatron-2026"),
        ("nemo-25.07", "2025", "megatron"),
        ("nanotron", "2025", "nanotron"),
        ("primus", "2025", "megatron"),
        ("MindSpeed", "2024", "megatron"),
        ("megascale", "2024", "megatron"),
        ("hai-llm", "2024", "megatron"),
        ("internevo", "2024", "internevo"),
        ("neuronx-distributed", "2024", "megatron-sync"),
        ("neuronx-nemo-megatron", "2024", "megatron-sync"),
        ("optimum-neuron (transformers)", "2025", "megatron-sync"),
        ("axlearn", "2024", "jax"),
        ("fla (flame)", "2025", "torch"),
        ("nanoGPT", "2023", "torch"),
        ("optimum-habana (transformers)", "2025", "transformers-foreach"),
        ("megatron-fsdp", "2025", "megatron"),
        ("Megatron-LM (2021)", "2021", "megatron-2021"),
        ("megatron-lm", "2021", "megatron-2021"),
        ("megatron-lm-2022", "2022", "megatron-2022"),
        ("torchtitan-rocm", "2025", "torch"),
        ("Primus (TorchTitan)", "2025", "torch"),
        ("fsdp2", "2024", "eager"),
        ("HF transformers + torch FSDP1", "2025", "transformers-foreach"),
        ("hf-accelerate", "2024", "transformers-foreach"),
        ("hf-accelerate", "2026", "transformers"),
        ("transformers 5.13.1, peft 0.19.2", "2026", "transformers-foreach"),
        ("maxtext", "2024", "jax"),
        ("alpa", "2022", "torch"),
        ("colossalai-2023", "2023", "eager"),
        ("deepspeed-2023", "2023", "deepspeed"),
        ("zero3", "2021", "deepspeed"),
        ("megatron-deepspeed-2022", "2022", "deepspeed"),
        ("gpt-neox", "2022", "deepspeed"),
        ("litgpt (Lightning Fabric)", "2024", "litgpt"),
        ("litgpt @8641822, torch 2.1.0", "2023", "litgpt-2023"),
        ("torchtune (torch.compile)", "2024", "torchtune-2024"),
        ("torchtune", "2025", "eager"),
        ("unsloth 2026.8 (trl, transformers)", "2026", "unsloth"),
    ],
)
def test_a_stack_is_a_runtime(stack: str, year: str, runtime: str) -> None:
    software, notes = software_of(row(stack=stack, year=year))
    assert software.plan["runtime"] == runtime
    assert notes[0].startswith("software:")


@pytest.mark.parametrize(("stack", "year"), [("", "2020"), ("", "2025"), ("unheard of", "2025")])
def test_a_stack_that_nobody_listed_is_the_ordinary_one(stack: str, year: str) -> None:
    """Eager, nothing overlapped, and said to be a guess; never the best that is known."""
    software, notes = software_of(row(stack=stack, year=year))
    assert software.guessed
    assert software.plan["runtime"] == "eager"
    assert not any(software.plan[name] for name in software.plan if name.startswith("overlap"))
    assert not software.plan.get("compile")
    assert "taken as eager PyTorch with nothing overlapped" in notes[0]


@pytest.mark.parametrize(
    ("stack", "guessed"),
    [("megatron-lm", False), ("torchtitan", False), ("mindspeed", True), ("primus", True)],
)
def test_a_fork_is_guessed(stack: str, guessed: bool) -> None:
    assert software_of(row(stack=stack, year="2025"))[0].guessed == guessed


def test_a_source_that_names_its_software_is_read() -> None:
    """Where the column of the stack says nothing."""
    run = row(stack="other", year="2024", source="torchtitan docs/performance.md")
    assert software_of(run)[0].plan["runtime"] == "torch"
    assert not software_of(run)[0].guessed


def test_a_release_that_the_notes_name_wins() -> None:
    software, _ = software_of(row(stack="maxtext", year="2025", notes="one step; NeMo 24.07; x"))
    assert software.label.startswith("NeMo")


@pytest.mark.parametrize(
    ("cells", "release"),
    [
        ({"source": "performance summary, container 26.04.01"}, "26.04"),
        ({"stack": "nemo-25.07"}, "25.07"),
        ({"notes": "NeMo 25.04; 64 sequences"}, "25.04"),
        ({"year": "2024"}, "24.05"),
    ],
)
def test_a_release_is_a_year_and_a_month(cells: dict[str, str], release: str) -> None:
    assert release_of(row(**cells)) == release


def test_a_recipe_holds_for_its_release_its_model_and_its_accelerator() -> None:
    cells = {"stack": "megatron-bridge", "model": "DeepSeek-V3-671B", "precision": "mxfp8"}

    def found(gpu: str, release: str) -> dict[str, object]:
        return recipe_for(row(**cells, gpu=gpu, source=f"container {release}")).plan

    assert found("GB300 NVL72", "25.09") == {}
    assert found("GB300 NVL72", "26.02") == {
        "runtime": "megatron-2026",
        "moe_dispatcher": "hybridep",
    }
    assert found("GB300 NVL72", "26.06")["runtime"] == "megatron-graphs"
    assert found("H100 SXM5", "25.09") == {"moe_dispatcher": "deepep", "overlap_ep": True}
    assert recipe_for(row(stack="nanotron", model="Mixtral")).plan == {}


def test_notes_say_what_a_selective_recipe_recomputes() -> None:
    run = row(recompute="selective", notes="the recipe recomputes layernorm+moe_act")
    assert recompute_of(run, False)[0]["recompute_modules"] == ("layernorm", "moe_act")


def test_frameworks_differ_in_what_they_do_by_default() -> None:
    nemo, core, hai = (software_of(row(stack=s))[0] for s in ("nemo", "megatron-core", "hai-llm"))
    assert gradient_dtypes(row(), nemo, "fp8")["gradient_reduce_dtype"] == "bf16"
    assert gradient_dtypes(row(), core, "fp8")["gradient_reduce_dtype"] == "fp32"
    assert nemo.plan["overlap_tp"]
    assert "overlap_tp" not in core.plan
    assert hai.plan["moe_dispatcher"] == "deepep"


def test_adapters_may_be_wider_than_the_weights_beside_them() -> None:
    peft = software_of(row(stack="peft"))[0]
    said = row(notes="weights bf16 (adapters fp32 by autocast_adapter_dtype)")
    assert gradient_dtypes(said, peft, "bf16")["master_weights_dtype"] == "none"
    assert "master_weights_dtype" not in gradient_dtypes(said, peft, "bf16", adapts=True)
    plain = row(notes="weights bf16")
    assert gradient_dtypes(plain, peft, "bf16", adapts=True)["master_weights_dtype"] == "none"


@pytest.mark.parametrize(
    ("cells", "kernel"),
    [
        ({"year": "2021"}, "unfused"),
        ({"year": "2023"}, "flash2"),
        ({"year": "2025", "stack": "megatron"}, "flash"),
        ({"year": "2025"}, "flash2"),
        ({"year": "2025", "attention_kernel": "unfused"}, "unfused"),
        ({"year": "2025", "attention_kernel": "FA2"}, "flash2"),
        ({"year": "2023", "attention_kernel": "cudnn"}, "flash"),
        ({"year": "2025", "flash_attention": "no"}, "unfused"),
        ({"year": "2025", "stack": "torchtitan"}, "flash2"),
    ],
)
def test_attention_follows_the_column_then_the_year(cells: dict[str, str], kernel: str) -> None:
    run = row(**cells)
    assert attention_kernel(run, software_of(run)[0]) == kernel


@pytest.mark.parametrize(
    ("cells", "fields"),
    [
        ({"notes": "arch: MLA (q_lora 1536, kv_lora 512)"}, {}),
        (
            {"model": "Llama-2-70B [LoRA]", "stack": "nemo-mlperf"},
            {"lora_rank": 16, "lora_targets": ("linear_qkv", "linear_proj"), "lora_dropout": 0.1},
        ),
        ({"notes": "LoRA (rank 32, all layers)", "stack": "nemo"}, {"lora_rank": 32}),
        ({"notes": "QLoRA, r=64", "stack": "bridge"}, {"lora_rank": 64, "frozen_dtype": "nf4"}),
    ],
)
def test_a_row_with_adapters_is_read_as_one(
    cells: dict[str, str], fields: dict[str, object]
) -> None:
    found, notes = adapters_of(row(**cells))
    assert found == fields
    assert bool(notes) == bool(fields)


def test_adapters_of_common_recipes_reach_all_matrices() -> None:
    found, _ = adapters_of(row(model="Qwen2.5-7B [LoRA]", stack="fsdp2-te"))
    assert (found["lora_rank"], len(found["lora_targets"])) == (16, 7)
    found, _ = adapters_of(row(model="Llama-3-8B [LoRA]", stack="unsloth"))
    assert (found["lora_rank"], len(found["lora_targets"])) == (8, 7)


def test_methods_of_peft_that_adapt_no_matrix() -> None:
    other = {"stack": "transformers 5.13.1, peft 0.19.2", "method": "peft-other"}
    found, _ = adapters_of(row(model="Llama-3.2-3B [ln_tuning]", **other))
    assert set(get_args(Part)) - set(found["frozen"]) == {"norms", "encoders"}
    found, _ = adapters_of(row(model="Llama-3.2-3B [prefixtuning-a]", **other))
    assert found["lora_targets"] == ("k_proj", "v_proj")


@pytest.mark.parametrize(("model", "count"), [("Gemma-2B", 7), ("Phi-2", 7), ("Mistral-7B", 2)])
def test_litgpts_configurations_say_which_matrices_have_adapters(model: str, count: int) -> None:
    source = "Lightning-AI/litgpt config_hub/finetune/README.md line 40"
    found, _ = adapters_of(row(model=f"{model} [lora]", stack="litgpt", source=source))
    assert len(found["lora_targets"]) == count
    found, _ = adapters_of(row(model=f"{model} [lora]", stack="litgpt", source="resource-tables"))
    assert len(found["lora_targets"]) == 2


def test_a_recipe_fills_what_a_row_leaves_open() -> None:
    deepseek = {"stack": "nemo", "model": "DeepSeek-V3-671B", "gpu": "H100 SXM5 80GB"}
    found = recipe_for(row(recompute="unknown", **deepseek))
    assert found.plan["recompute_modules"] == ("mla_up_proj",)
    assert "model_configs_h100.csv" in found.notes[0]
    assert not recipe_for(row(recompute="full", **deepseek)).plan
    assert not recipe_for(row(recompute="unknown", **{**deepseek, "model": "Llama3-70B"})).plan


def test_a_recipe_of_a_source_is_found_by_its_path() -> None:
    path = "AI-Hypercomputer/tpu-recipes training/trillium/Llama3.1-70B-MaxText/v6e-32/README.md"
    found = recipe_for(row(stack="maxtext", gpu="TPU v6e", recompute="selective", source=path))
    assert found.training["master_weights_dtype"] == "none"


@pytest.mark.parametrize(
    ("notes", "seq_length", "global_batch_size"),
    [
        ("peak memory of the run", 210, 4),
        ("samples vary and are cut at 768, padded to the longest of the batch of 4", 768, 4),
        ("time of one micro-step", 210, 8),
    ],
)
def test_memory_is_of_the_step_in_which_it_is_fullest(
    notes: str, seq_length: int, global_batch_size: int
) -> None:
    found = at_its_peak(row(notes=notes), TrainingSpec(seq_length=210, global_batch_size=4))
    assert (found.seq_length, found.global_batch_size) == (seq_length, global_batch_size)


@pytest.mark.parametrize(
    ("notes", "quantity"),
    [
        ("peak = torch max RESERVED over the run", "reserved"),
        ("max memory as printed in GB (torch max_memory_allocated/1e9)", "allocated"),
        ("as nvidia-smi shows it", "driver"),
    ],
)
def test_what_a_peak_counts(notes: str, quantity: str) -> None:
    assert memory_quantity(row(notes=notes)) == quantity
