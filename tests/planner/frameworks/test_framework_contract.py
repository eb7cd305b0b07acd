"""The contract of every framework: all fields written or refused, reasons, quoting, all at once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args
from zlib import crc32

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from cost_models.catalog import models as presets
from cost_models.catalog.names import UnknownName
from cost_models.fields import Spec
from cost_models.plans import ParallelPlan, Plans
from planner import frameworks
from planner.constraints import Context
from planner.documents.answer import REASONS
from planner.documents.request import PlanRequest
from planner.frameworks import bash_writer
from planner.frameworks.base import Bundle, Flag, Unsupported, filled, one_line
from tests.fixtures import goldens
from tests.fixtures.canonical import canonical
from tests.fixtures.frameworks import ALL_CASES, CASES, DRAWN, NAMES, bundle, takes
from tests.fixtures.hostile_names import check_only_names
from tests.fixtures.launches import (
    MODELS,
    launch,
    launches,
    patterned,
    tuned,
    written,
)
from tests.fixtures.patterns import PATTERNED
from tests.fixtures.tiers import examples

HOSTILE = 'x\'; touch pwned; "$(touch pwned)" `touch pwned` \n touch pwned\r\u2028touch pwned #'
# Of which golden files are drawn: lines like those of a diff, comments, and an end without one.
LINES = (
    "a\n", "b\n", "\n", "@@ 0,1\n", "=== x\n", "+a\n", "b",
    "# 1\n", "a  # why\n", " a # # 0\n", "#\n",
)  # fmt: skip


@pytest.mark.parametrize(("name", "case"), ALL_CASES)
def test_golden(name: str, case: str) -> None:
    assert bundle(name, case).files == goldens.read(name, case)


@pytest.mark.parametrize("name", NAMES)
def test_ten_golden_plans_and_none_left_over(name: str) -> None:
    assert len(CASES[name]) >= 10
    assert goldens.stored_cases(name) == set(CASES[name])


@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.dictionaries(
            st.sampled_from("xy"), st.lists(st.sampled_from(LINES)).map("".join), max_size=2
        ),
        min_size=1,
    )
)
@settings(max_examples=examples(100))
def test_folded_golden_files_unfold_to_what_was_written(cases: dict[str, dict[str, str]]) -> None:
    comments: goldens.Comments = {}
    bare = {case: goldens.without_comments(files, comments) for case, files in cases.items()}
    whole, diffs = goldens.fold(bare)
    unfolded = {case: goldens.unfold(diff, whole) for case, diff in diffs.items()}
    assert {case: goldens.with_comments(fs, comments) for case, fs in unfolded.items()} == cases


@pytest.mark.parametrize("name", NAMES)
def test_every_field_of_the_plan_is_said_or_refused_with_a_reason(name: str) -> None:
    fields = frameworks.get(name).fields
    assert set(fields) == set(ParallelPlan.model_fields)
    assert [key for key, said in fields.items() if not said.supported and not said.note] == []


def test_names_and_aliases_and_the_nearest_of_an_unknown_one() -> None:
    assert frameworks.get("Megatron-LM ").name == "megatron"
    with pytest.raises(UnknownName) as caught:
        frameworks.get("megatorn")
    assert "megatron" in caught.value.nearest


@pytest.mark.parametrize("name", NAMES)
def test_axes_are_plan_fields_and_start_with_the_runtime(name: str) -> None:
    framework = frameworks.get(name)
    assert set(framework.axes) <= set(ParallelPlan.model_fields)
    assert framework.axes["runtime"] == (framework.runtime,)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "case"), ALL_CASES)
def test_every_flag_has_a_why_and_stands_in_the_files(name: str, case: str) -> None:
    made = bundle(name, case)
    text = "\n".join(made.files.values())
    for flag in made.flags:
        assert flag.why
        assert "\n" not in flag.why
        assert flag.name.rsplit(".", 1)[-1] in text, flag.name
    assert made.main in made.files
    assert Bundle.model_validate_json(made.model_dump_json()) == made


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "case"), ALL_CASES)
def test_scripts_and_python_parse(name: str, case: str, tmp_path: Path) -> None:
    made = bundle(name, case)
    written(tmp_path, made)
    assert {Path(file).suffix for file in made.files} & {".sh", ".py"}
    for file, text in made.files.items():
        if file.endswith(".sh"):
            result = subprocess.run(["bash", "-n", tmp_path / file], capture_output=True, text=True)
            assert (result.returncode, result.stderr) == (0, "")
        if file.endswith(".py"):
            compile(text, file, "exec")


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "case"), ALL_CASES)
def test_scripts_are_sound(name: str, case: str, tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    made = bundle(name, case)
    written(tmp_path, made)
    for file in (file for file in made.files if file.endswith(".sh")):
        result = subprocess.run(["shellcheck", tmp_path / file], capture_output=True, text=True)
        assert result.stdout == ""


@pytest.mark.parametrize("name", NAMES)
def test_hostile_names_stay_names(name: str, tmp_path: Path) -> None:
    request, plan = next(iter(CASES[name].values()))
    check_only_names(name, request, plan, HOSTILE, tmp_path)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "case"), ALL_CASES)
def test_one_script_carries_every_file_and_calls_the_main_one(
    name: str, case: str, tmp_path: Path
) -> None:
    made = bundle(name, case)
    script = tmp_path / "run.sh"
    script.write_text(bash_writer.one_script(made))
    if len(made.files) == 1:
        assert script.read_text() == made.files[made.main]
        return
    # Everything but the last line, which would start it.
    unpacked = tmp_path / "run"
    head, _, last = script.read_text().rstrip("\n").rpartition("\n")
    assert last == f'exec bash "$BUNDLE"/{made.main} "$@"'
    subprocess.run(["bash", "-c", head], env={**os.environ, "BUNDLE": str(unpacked)}, check=True)
    assert {path.name: path.read_text() for path in unpacked.iterdir()} == made.files


def test_a_delimiter_inside_a_file_ends_nothing(tmp_path: Path) -> None:
    files = {"main.sh": "true\n", "odd name.txt": "END_OF_FILE\n$(touch pwned)\nEND_OF_FILE_\n"}
    made = Bundle(framework="x", versions="1", main="main.sh", files=files, flags=())
    script = bash_writer.one_script(made)
    subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "BUNDLE": str(tmp_path)},
        cwd=tmp_path,
        check=True,
    )
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


def test_only_plain_words_are_defaults_of_variables() -> None:
    plain = Flag(name="--name", value="1.0e-4", why="why", variable="NAME")
    fixed = Flag(name="--other", value="1", why="why")
    assert bash_writer.overridable([plain, fixed]) == 'NAME="${NAME:-1.0e-4}"  # why'
    for value in ("$(touch pwned)", "a}b", "", "a b", '"'):
        with pytest.raises(ValueError, match="default"):
            bash_writer.overridable([plain.model_copy(update={"value": value})])


def test_comments_are_one_line_whatever_the_text() -> None:
    assert len(one_line(HOSTILE).splitlines()) == 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(60), deadline=None)
@given(drawn=launches())
def test_rules_say_the_same_of_one_plan_and_of_many(
    name: str, drawn: tuple[PlanRequest, ParallelPlan]
) -> None:
    request, plan = drawn
    context = Context(request.model, request.cluster, request.training)
    others = [plan, ParallelPlan(), ParallelPlan(tp=2, pp=2, sequence_parallel=True)]
    many, each = Plans.from_rows(others), [Plans.from_rows([one]) for one in others]
    for rule in frameworks.get(name).rules:
        assert rule.code in REASONS
        together = np.broadcast_to(rule.legal(context, many), len(others))
        for index, one in enumerate(others):
            alone = np.broadcast_to(rule.legal(context, each[index]), 1)
            assert together[index] == alone[0], rule
            if not alone[0]:
                text = rule.explain(context, one)
                assert text
                assert text == one_line(text)


@pytest.mark.parametrize("name", NAMES)
def test_sentences_of_rules_name_what_a_context_and_a_plan_have(name: str) -> None:
    request, plan = launch(presets.model("deepseek-v3"))
    context = Context(request.model, request.cluster, request.training)
    for rule in frameworks.get(name).rules:
        if isinstance(rule.explain, partial) and rule.explain.func is filled:
            assert rule.explain(context, plan)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_what_is_written_obeys_the_batch_identity_and_what_is_not_says_why(
    name: str, data: st.DataObject
) -> None:
    request, plan = data.draw(DRAWN[name])
    framework = frameworks.get(name)
    reasons = framework.reasons(request, plan)
    event("refused" if reasons else "written")
    if reasons:
        with pytest.raises(Unsupported) as refused:
            framework.write(request, plan)
        assert refused.value.reasons == reasons
        return
    made = framework.write(request, plan)
    batch, micro = request.training.global_batch_size, plan.micro_batch_size
    accumulation, rest = divmod(batch, micro * plan.dp)
    assert rest == 0
    identity = f"train_batch {batch} = micro_batch {micro} * accumulation {accumulation}"
    assert f"{identity} * dp {plan.dp}" in made.files[made.main]


# Other values of a field, for what has no small vocabulary; booleans and literals have their own.
OTHERS: dict[str, tuple[Any, ...]] = {
    "tp": (1, 2, 4), "cp": (1, 2), "pp": (1, 2, 4), "vpp": (1, 2), "dp_shard": (0, 2, 4),
    "ep": (1, 2, 4), "etp": (1, 2), "zero_stage": (0, 1, 2, 3), "micro_batch_size": (1, 2, 4),
    "recompute_modules": (("core_attn",), ("layernorm",), ("mlp", "core_attn"), ("op",)),
    "recompute_num_layers": (1, 2), "recompute_layers": ((), (1, 0), (1, 0, 1, 0)),
    "first_stage_layers": (0, 2, 3), "last_stage_layers": (0, 2, 3),
    "stage_layers": ((), (2, 6), (5, 3), (3, 5, 5, 3)),
    "hidden_size": (), "name": (), "tokens": (), "global_batch_size": (64, 128),
    "seq_length": (1024, 2048), "num_layers": (8, 12), "vocab_size": (32000, 64000),
    "ffn_hidden_size": (1024, 2048), "num_query_groups": (4, 8), "head_dim": (32, 64),
    "sliding_window": (None, 128, 256), "full_attention_period": (None, 2, 4),
    "hidden_dropout": (0.0, 0.1), "attention_dropout": (0.0, 0.1), "mtp_num_layers": (0, 1),
    "max_position_embeddings": (2048, 4096), "num_attention_heads": (8, 16), "mla": (), "moe": (),
    "norms_per_layer": (2, 4), "dp": (), "lora_rank": (0, 8, 16), "lora_dropout": (0.0, 0.1),
    "lora_targets": (("linear_qkv", "linear_proj"), ("q_proj",)), "frozen": ((), ("head",)),
    "sample_lengths": ((), (100, 200)), "teacher_parameters": (None, 1e9),
}  # fmt: skip


def other_values(spec: Spec, field: str) -> tuple[Any, ...]:
    if field in OTHERS:
        return OTHERS[field]
    kind = type(spec).model_fields[field].annotation
    return (False, True) if kind is bool else get_args(kind)


def variants(
    request: PlanRequest, plan: ParallelPlan, wanted: Callable[[str], bool] = lambda label: True
) -> Iterator[tuple[str, PlanRequest, ParallelPlan]]:
    """The same launch with one field of its specs changed, for every wanted field and value."""
    parts: dict[str, Spec] = {"plan": plan, "model": request.model, "training": request.training}
    for part, spec in parts.items():
        for field in type(spec).model_fields:
            for value in other_values(spec, field):
                label = f"{part}.{field} {value}"
                if value == getattr(spec, field) or not wanted(label):
                    continue
                try:
                    other = type(spec)(**{**spec.model_dump(), field: value})
                except ValueError:
                    continue
                if isinstance(other, ParallelPlan):
                    yield label, request, other
                else:
                    yield label, request.model_copy(update={part: other}), plan


# Of a framework's cases each is asked another tenth of the changes, so that every change is made in
# several of them.  The exhaustive tests ask all changes of all cases.
@pytest.mark.one_in(3)
@pytest.mark.parametrize("share", [10, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("name", "case"), ALL_CASES)
def test_nothing_that_is_asked_is_silently_left_out(name: str, case: str, share: int) -> None:
    """Change one thing: the plan is refused, or the files change."""
    request, plan = CASES[name][case]
    framework = frameworks.get(name)
    files = bundle(name, case).files
    number, as_is, document = (
        list(CASES[name]).index(case),
        canonical(plan, request.model),
        request.document(),
    )
    silent = [
        label
        for label, changed, other in variants(
            request, plan, lambda label: (crc32(label.encode()) + number) % share == 0
        )
        if takes(name, changed, other)
        if canonical(other, changed.model) != as_is or changed.document() != document
        if framework.render(changed, other).files == files
    ]
    assert [label for label in silent if not _idle(label.split()[0], request, plan)] == []


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"pytorch"}))
def test_layers_in_a_pattern_of_their_own_are_refused(name: str) -> None:
    case = next(iter(CASES[name].values()))
    reasons = frameworks.get(name).reasons(*patterned(*case))
    usual = "no option for layers with full, window 128, window 64"
    families = ("accelerate", "axolotl", "llama-factory", "trl", "unsloth")
    said = dict.fromkeys(families, "no family of transformers builds this model")
    said |= dict.fromkeys(("megatron", "megatron-bridge"), "all windows have one width")
    words = said.get(name, usual)
    assert len([reason for reason in reasons if reason.text.startswith(words)]) == 1
    own = frameworks.get(name).reasons(*case)
    assert not own


@pytest.mark.parametrize("name", list(CASES))
def test_what_cannot_be_tuned_is_refused_in_one_sentence(name: str) -> None:
    case = next(iter(CASES[name].values()))
    before = {reason.text for reason in frameworks.get(name).reasons(*case)}
    after = {reason.text for reason in frameworks.get(name).reasons(*tuned(*case))}
    said = {"(every|all) weight|not (in )?nf4", "mock data of one length", "for dpo use TRL"}
    # These load frozen weights in four bits.
    if name in ("axolotl", "llama-factory", "torchtune", "trl", "unsloth"):
        said.remove("(every|all) weight|not (in )?nf4")
    if name in ("llama-factory", "trl"):
        said.remove("for dpo use TRL")
    assert all(any(re.search(one, why) for why in after - before) for one in said)


def test_the_native_script_builds_windows_of_any_width() -> None:
    case = patterned(*next(iter(CASES["pytorch"].values())))
    reasons = frameworks.get("pytorch").reasons(*case)
    assert "framework_unsupported" not in {reason.code for reason in reasons}


def test_a_refusal_of_layers_names_who_can_run_them() -> None:
    reasons = frameworks.get("mindspeed").reasons(*launch(PATTERNED["nemotron-h"]))
    (text,) = [reason.text for reason in reasons if "option for layers" in reason.text]
    assert text == (
        "no option for layers with full without positions, mamba2; Megatron-LM, "
        "Megatron-Bridge, Native PyTorch, Hugging Face accelerate can"
    )


def _idle(field: str, request: PlanRequest, plan: ParallelPlan) -> bool:
    """Whether the field says nothing of a launch of such a model over such ranks."""
    model, training = request.model, request.training
    return {
        "model.name": True,
        "training.tokens": True,
        "training.lora_targets": not training.lora_rank,
        "training.lora_dropout": not training.lora_rank,
        "training.teacher_parameters": training.loss != "distillation",
        "training.gradient_reduce_dtype": plan.dp * plan.cp == 1,
        "training.packing": not training.sample_lengths,
        "training.fp8_recipe": training.precision != "fp8",
        "training.fp8_param_gather": training.precision != "fp8",
        "model.max_position_embeddings": model.position != "learned",
        "model.mlp_bias": "dense" not in model.feed_forwards,
        "model.ffn_hidden_size": "dense" not in model.feed_forwards,
        "model.num_query_groups": model.mla is not None,
        "model.head_dim": model.mla is not None,
    }.get(field, False)


def test_all_reasons_are_raised_at_once() -> None:
    alibi = MODELS["llama"].model_copy(update={"position": "alibi", "parallel_residual": True})
    request, plan = launch(alibi, tp=3, dp=4, micro_batch_size=5, training={"seq_length": 2047})
    with pytest.raises(Unsupported) as caught:
        frameworks.get("megatron").write(request, plan)
    codes = [reason.code for reason in caught.value.reasons]
    assert codes.count("framework_unsupported") == 2
    assert {"world_size", "batch_identity", "heads_not_divisible", "kv_heads"} <= set(codes)
    assert all(reason.text in str(caught.value) for reason in caught.value.reasons)
