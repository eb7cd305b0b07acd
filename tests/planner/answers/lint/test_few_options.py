"""Better plans of launches that are not written here: micro-batch and recompute, by options."""

from __future__ import annotations

import re
from itertools import product

import pytest

import planner
from planner.answers.lint.few_options import MOST_MICRO_BATCH
from planner.answers.lint.findings import LintAnswer
from planner.answers.lint.lint import lint
from planner.evidence.uncertainty.site_storage import room_of
from planner.inputs.requests.parser import parse_cluster, parse_request

CLUSTER = "8xh100-sxm"
SCRIPT = """#!/bin/bash
torchrun --nproc_per_node=8 train.py \\
  --model_name_or_path Qwen/Qwen2.5-7B --data_path data.json --model_max_length 2048 \\
  --per_device_train_batch_size 1 --gradient_accumulation_steps 16 \\
  --bf16 True --gradient_checkpointing True \\
  --fsdp "full_shard auto_wrap"
"""


def linted(**files: str) -> LintAnswer:
    named = {name.replace("__", "."): text for name, text in files.items()}
    return lint(named, parse_cluster(CLUSTER))


# With 3,328 tokens a faster plan is within the accelerator's memory, but not within the room.
@pytest.mark.parametrize(("tokens", "short_of_room"), [(2048, False), (3328, True)])
def test_it_is_the_fastest_of_all_that_fit(tokens: int, short_of_room: bool) -> None:
    """Against an estimate of each: seven micro-batches, with and without recompute.

    They are those up to the largest that is tried, of which a rank has as many sequences.
    """
    script = SCRIPT.replace("max_length 2048", f"max_length {tokens}")
    answer = linted(run__sh=script.replace("steps 16", f"steps {MOST_MICRO_BATCH}"))
    assert answer.best is not None
    assert answer.verdict == "improvable"
    assert not answer.searched
    request = {name: answer.request[name] for name in ("model", "cluster", "training", "search")}
    own, room = answer.request["plan"], room_of(parse_request(request))
    sizes = [1 << power for power in range(MOST_MICRO_BATCH.bit_length())]
    assert sizes == [1, 2, 4, 8, 16, 32, 64]
    times, beyond = {}, []
    for size, recompute in product(sizes, ("none", "full")):
        plan = {**own, "micro_batch_size": size, "recompute": recompute}
        if recompute == "none":
            plan |= {"recompute_num_layers": 0, "recompute_method": "block"}
        one = planner.estimate({**request, "plan": plan}).estimate
        if one.memory.needed_bytes <= room.of_plan(one.plan):
            assert one.fits
            times[size, recompute] = one.iteration_time_s
        elif one.memory.needed_bytes <= one.memory.capacity_bytes:
            beyond.append(one.iteration_time_s)
    best = min(times, key=lambda key: times[key])
    assert any(time < times[best] for time in beyond) is short_of_room
    found = answer.best.report
    assert (found.plan.micro_batch_size, found.plan.recompute) == best
    assert found.iteration_time_s == pytest.approx(times[best])


def test_the_changed_file_is_that_plan_and_has_no_better_one() -> None:
    answer = linted(run__sh=SCRIPT)
    assert answer.best is not None
    text = answer.best.files["run.sh"]
    assert answer.best.by_hand == ()
    again = linted(run__sh=text)
    assert again.estimate is not None
    assert again.estimate.plan == answer.best.report.plan
    assert again.request["training"]["global_batch_size"] == 128
    assert again.best is None
    assert "gradient_checkpointing False" in text


def test_what_does_not_fit_is_mended() -> None:
    large = SCRIPT.replace("batch_size 1", "batch_size 16").replace("steps 16", "steps 1")
    answer = linted(run__sh=large.replace("checkpointing True", "checkpointing False"))
    assert answer.verdict == "does not fit"
    assert answer.best is None
    assert answer.mended is not None
    assert answer.mended.report.fits
    assert linted(run__sh=answer.mended.files["run.sh"]).verdict != "does not fit"


def test_a_variable_that_others_follow_from_is_changed_once() -> None:
    """The accumulation is computed from the micro-batch: the batch of a step stays."""
    script = "BS=${BS:-1}\nGA=$((128 / 8 / BS))\n" + SCRIPT.replace("size 1", "size $BS")
    answer = linted(run__sh=script.replace("steps 16", "steps $GA"))
    assert answer.best is not None
    again = linted(run__sh=answer.best.files["run.sh"])
    assert again.estimate is not None
    assert again.estimate.plan == answer.best.report.plan


def test_without_accumulation_the_batch_stays_and_recompute_alone_changes() -> None:
    answer = linted(run__sh=SCRIPT.replace(" --gradient_accumulation_steps 16", ""))
    assert answer.best is not None
    assert [one.option for one in answer.best.changes] == ["--gradient_checkpointing"]


def test_without_known_options_no_plan_is_offered() -> None:
    script = re.sub(r" --gradient_accumulation_steps 16|--gradient_checkpointing True", "", SCRIPT)
    answer = linted(run__sh=script)
    assert answer.best is None
    assert answer.mended is None


def test_pairs_are_counted_as_pairs() -> None:
    """TRL counts pairs of sequences, of which the planner counts both."""
    program = """
from trl import DPOConfig, DPOTrainer
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B")
args = DPOConfig(
    output_dir="out", max_length=1024, bf16=True,
    per_device_train_batch_size=1,
    gradient_accumulation_steps=16,
    gradient_checkpointing=True,
)
DPOTrainer(model=model, args=args, train_dataset=None).train()
"""
    answer = linted(run__sh="accelerate launch --num_processes 8 dpo.py\n", dpo__py=program)
    assert answer.best is not None
    changed = {one.option: one.after for one in answer.best.changes}
    size = answer.best.report.plan.micro_batch_size
    assert int(changed["per_device_train_batch_size"] or 0) * 2 == size
    assert int(changed["gradient_accumulation_steps"] or 0) * size * 8 == 256
    assert changed["gradient_checkpointing"] == "False"
    text = answer.best.files["dpo.py"]
    assert "gradient_checkpointing=False,\n" in text
    again = linted(run__sh="accelerate launch --num_processes 8 dpo.py\n", dpo__py=text)
    assert again.estimate is not None
    assert again.estimate.plan == answer.best.report.plan


ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
num_processes: 8
deepspeed_config:
  gradient_accumulation_steps: 16
  zero_stage: 3
mixed_precision: bf16
"""


def test_a_number_that_two_files_say_is_left_alone() -> None:
    """Transformers stops where DeepSpeed's accumulation is another than its own."""
    script = SCRIPT.replace("torchrun --nproc_per_node=8", "accelerate launch --config_file a.yaml")
    script = script.replace(' \\\n  --fsdp "full_shard auto_wrap"', "")
    twice = linted(run__sh=script, a__yaml=ACCELERATE).best
    assert twice is not None
    assert {one.option for one in twice.changes} == {"--gradient_checkpointing"}
    open_there = ACCELERATE.replace("steps: 16", "steps: auto")
    once = linted(run__sh=script, a__yaml=open_there).best
    assert once is not None
    assert "--per_device_train_batch_size" in {one.option for one in once.changes}


def test_accumulation_that_follows_from_the_batch_of_a_step() -> None:
    """OpenRLHF divides its batch by the ranks and the micro-batch."""
    script = (
        "deepspeed --num_gpus 8 -m openrlhf.cli.train_sft --pretrain meta-llama/Llama-3.1-8B "
        "--max_len 2048 --train_batch_size 128 --micro_train_batch_size 1 --zero_stage 3 --bf16 "
        "--gradient_checkpointing --flash_attn\n"
    )
    found = linted(run__sh=script).best
    assert found is not None
    assert found.by_hand == ()
    assert found.report.plan.micro_batch_size > 1
    again = linted(run__sh=found.files["run.sh"])
    assert again.request["training"]["global_batch_size"] == 128
    assert again.best is None


@pytest.mark.parametrize("loss", ["sigmoid", "orpo"])
def test_a_sample_of_preferences_is_two_sequences(loss: str) -> None:
    """ORPO trains on pairs by the loss of the next token: the option tells what it counts."""
    text = (
        "model_name_or_path: meta-llama/Llama-3.1-8B\nstage: dpo\nfinetuning_type: lora\n"
        f"pref_loss: {loss}\ncutoff_len: 1024\nper_device_train_batch_size: 1\n"
        "gradient_accumulation_steps: 16\nbf16: true\ndataset: a\ntemplate: llama3\n"
        "do_train: true\nuse_unsloth_gc: false\nflash_attn: fa2\nmax_samples: 5\n"
    )
    answer = linted(run__yaml=text)
    assert answer.request["training"]["global_batch_size"] == 2 * 16 * 8
    assert answer.best is not None
    changes = {one.option: one.after for one in answer.best.changes}
    size = int(changes["per_device_train_batch_size"] or 0)
    assert answer.best.report.plan.micro_batch_size == 2 * size
    assert size * int(changes["gradient_accumulation_steps"] or 0) == 16
    assert answer.best.by_hand == ()
