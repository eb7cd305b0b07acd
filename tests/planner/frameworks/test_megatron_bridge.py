"""Megatron-Bridge recipes: attributes its classes have, the real validation, and every refusal."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from cost_models.plans import ParallelPlan
from planner import frameworks
from planner.documents.request import PlanRequest
from planner.frameworks.megatron.model_rules import MUON_IN_FP8
from planner.frameworks.megatron.options import OPTIONS
from planner.frameworks.megatron.patterns import is_hybrid
from planner.frameworks.megatron.rules import EARLY_GATHER, STABLE_LOSS
from planner.frameworks.megatron.rules import RULES as CORE
from planner.frameworks.megatron_bridge import SECTIONS
from planner.frameworks.rules import TWO_NORMS
from tests.fixtures.draws import legal_draws
from tests.fixtures.frameworks import legal_cases
from tests.fixtures.frameworks.megatron_bridge import CASES, DRAWN
from tests.fixtures.goldens import GOLDEN
from tests.fixtures.launches import (
    INTERLEAVED,
    MODELS,
    NO_QUERY_LATENT,
    TP2,
    launch,
    run_script,
    unreached,
    written,
)
from tests.fixtures.patterns import PATTERNED
from tests.fixtures.tiers import examples
from tests.planner.frameworks.test_megatron import CHANGES
from tests.tools.checkouts import checkout, environment, megatron_lm_of

BRIDGE = frameworks.get("megatron-bridge")
STORED = json.loads((GOLDEN / "megatron_bridge_fields.json").read_text())["classes"]
# peft/lora.py and peft/canonical_lora.py of 067f987, which need Transformer Engine to be imported.
ADAPTERS = {
    "target_modules": {"types": ["list"]},
    "dim": {"types": ["int"]},
    "alpha": {"types": ["int"]},
    "dropout": {"types": ["float"]},
}
CLASSES = {**STORED, "LoRA": ADAPTERS, "CanonicalLoRA": ADAPTERS}
ORACLE = Path(__file__).parents[2] / "oracles" / "megatron_bridge_check.py"
WRITERS = ("flags", "hybrid", "layout", "patterns", "numerics", "packed_samples", "windows")


def recipe(request: PlanRequest, plan: ParallelPlan) -> str:
    return BRIDGE.write(request, plan).files["recipe.py"]


def sections(source: str) -> dict[str, ast.Call]:
    """Section -> the call that builds it."""
    (call,) = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ConfigContainer"
    ]
    return {str(one.arg): one.value for one in call.keywords if isinstance(one.value, ast.Call)}


def fits(value: ast.expr, known: dict[str, list[Any]]) -> bool:
    """Whether an attribute that admits what is known takes the value."""
    types, choices = known.get("types", []), known.get("choices", [])
    if isinstance(value, ast.Attribute):
        kinds = {"torch": "dtype", "torch.nn.functional": "Callable", "variants": "Callable"}
        owner = ast.unparse(value.value)
        return kinds.get(owner, owner) in types
    if isinstance(value, ast.Call):
        return {"int": "int", "partial": "Callable"}[ast.unparse(value.func)] in types
    if isinstance(value, ast.BoolOp):  # os.environ.get("A") or "default"
        return fits(value.values[-1], known)
    if isinstance(value, ast.BinOp):  # [0] * 1 + [1] * 12
        return "list" in types
    plain = ast.literal_eval(value)
    kind = type(plain).__name__
    return plain in choices or kind in types or (kind == "int" and "float" in types)


def misfits(source: str) -> list[str]:
    """What the configuration classes would not take, by their stored list."""
    found = []
    for section, call in sections(source).items():
        kind = ast.unparse(call.func)
        for one in call.keywords:
            known = CLASSES[kind].get(one.arg)
            if known is None:
                found.append(f"{kind} has no {one.arg}")
            elif not fits(one.value, known):
                found.append(f"{section}.{one.arg} cannot be {ast.unparse(one.value)}")
    return found


@pytest.mark.parametrize("case", CASES)
def test_every_attribute_exists_and_takes_its_value(case: str) -> None:
    source = recipe(*CASES[case])
    peft = {"peft"} if CASES[case][0].training.lora_rank else set()
    assert set(sections(source)) == set(SECTIONS) | peft
    assert misfits(source) == []


@pytest.mark.parametrize("name", PATTERNED)
def test_models_whose_layers_differ(name: str) -> None:
    request, plan = launch(PATTERNED[name], shape=(1, 8))
    source = recipe(request, plan)
    assert misfits(source) == []
    provider = ast.unparse(sections(source)["model"].func)
    latent = "MLAModelProvider" if PATTERNED[name].mla is not None else "GPTModelProvider"
    assert provider == ("HybridModelProvider" if is_hybrid(PATTERNED[name]) else latent)
    named = {one.arg for one in sections(source)["model"].keywords}
    assert ("num_layers" in named) is not ("hybrid_layer_pattern" in named)


@settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=legal_draws(BRIDGE, DRAWN, CASES))
def test_every_drawn_attribute_exists(drawn: tuple[PlanRequest, ParallelPlan]) -> None:
    assert BRIDGE.reasons(*drawn) == ()
    assert misfits(recipe(*drawn)) == []


def test_the_stored_list_would_catch_a_wrong_attribute() -> None:
    source = recipe(*CASES["gpt-oss"])
    wrong = (
        source.replace("num_layers=", "n_layers=")
        .replace("AttnBackend.fused", "AttnMask.fused")
        .replace("num_attention_heads=8", 'num_attention_heads="8"')
        .replace("lr=1.0e-4", "lr=torch.float32")
    )
    assert len(misfits(wrong)) == 4


def test_an_option_is_written_by_its_row_or_by_code_and_not_by_both() -> None:
    modules = [import_module(f"planner.frameworks.megatron.{m}") for m in WRITERS]
    named = set(re.findall(r'"(--[a-z0-9-]+)"', "".join(map(inspect.getsource, modules))))
    named |= {"--bf16", "--lr", "--train-iters"}
    named |= {f"--decoder-{end}-pipeline-num-layers" for end in ("first", "last")}
    named |= {"--accumulate-allreduce-grads-in-fp32", "--grad-reduce-in-bf16"}
    assert {name for name, row in OPTIONS.items() if row.codec is None} == named


@pytest.mark.parametrize("field", [name for name in CHANGES if BRIDGE.fields[name].supported])
def test_every_supported_field_reaches_the_recipe(field: str) -> None:
    case, update = CHANGES[field]
    request, plan = CASES[case]
    other = ParallelPlan(**{**plan.model_dump(), **update})
    before, after = (
        {(flag.name, flag.value) for flag in BRIDGE.write(request, one).flags}
        for one in (plan, other)
    )
    differing = {name for name, _ in before ^ after}
    derived = {"dp"}  # no setting: what the other sizes leave of the world
    assert differing
    assert field in derived or differing & set(BRIDGE.fields[field].names), differing


def test_the_script_starts_the_recipe_beside_it_on_every_node(tmp_path: Path) -> None:
    made = BRIDGE.write(*CASES["llama-uneven"])
    written(tmp_path, made)
    ((launcher, *call),) = run_script(tmp_path, made.main)
    assert launcher == "torchrun"
    assert call[-1] == str(tmp_path / "recipe.py")
    assert call[call.index("--nnodes") + 1] == "2"
    assert call[call.index("--nproc_per_node") + 1] == "8"


def test_the_default_run_is_short_and_the_environment_lengthens_it() -> None:
    source = recipe(*CASES["llama-uneven"])
    assert 'train_iters=int(os.environ.get("TRAIN_ITERS") or 20),' in source
    assert "the 1e+12 tokens asked for are" in source


REFUSED: list[tuple[str, tuple[PlanRequest, ParallelPlan]]] = [
    ("learned or rotary positions, not none", launch("nope")),
    ("adds a norm before the query projection", launch(NO_QUERY_LATENT)),
    (
        "its providers for Gemma 2 and 3",
        launch(MODELS["llama"].model_copy(update={"norms_per_layer": 4.0})),
    ),
    ("row per token of a sequence, 2048; this model's has 4096", launch("gpt")),
    ("no option freezes parts", launch(training={"frozen": ["embedding"]})),
    ("training, not nf4", launch(training={"lora_rank": 8, "frozen_dtype": "nf4"})),
    (
        "cannot be mixed: linear_qkv, up_proj",
        launch(training={"lora_rank": 8, "lora_targets": ["linear_qkv", "up_proj"]}),
    ),
    (
        "adapts routed experts by these names",
        launch("mixtral", training={"lora_rank": 8, "lora_targets": ["q_proj", "up_proj"]}),
    ),
    ("rank order tp-cp-ep-pp-dp", launch(zero_stage=3, rank_order="tp-cp-ep-pp-dp")),
    ("runtime is megatron or megatron-2026, not torch", launch(runtime="torch")),
    ("one chunk per stage", launch(PATTERNED["bamba"], **{**INTERLEAVED, "pp": 2})),
]


@pytest.mark.parametrize(("text", "case"), REFUSED, ids=[text for text, _ in REFUSED])
def test_refusals(text: str, case: tuple[PlanRequest, ParallelPlan]) -> None:
    assert [reason.text for reason in BRIDGE.reasons(*case) if text in reason.text]


def test_every_own_rule_is_reached_by_a_refusal() -> None:
    mixers = set(frameworks.get("megatron").rules) & set(BRIDGE.rules)
    assert unreached(BRIDGE, [case for _, case in REFUSED]) <= mixers | set(CORE)
    left_out = {EARLY_GATHER, STABLE_LOSS, MUON_IN_FP8, TWO_NORMS}
    assert set(CORE) - left_out < set(BRIDGE.rules)


def test_expandable_segments_are_written_where_they_are_priced() -> None:
    """And read back from the variable, which wins over the recipe's own."""
    request, plan = CASES["llama-uneven"]
    variable = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    made = BRIDGE.write(request, plan.model_copy(update={"runtime": "megatron-2026"}))
    assert variable in made.files[made.main].replace('"', "")
    assert "expandable_segments" not in BRIDGE.write(request, plan).files[made.main]


def test_adapters_are_written_as_the_class_that_has_their_names() -> None:
    fused = sections(recipe(*CASES["llama-adapters"]))["peft"]
    apart = sections(recipe(*CASES["llama-adapters-apart"]))["peft"]
    assert [ast.unparse(one.func) for one in (fused, apart)] == ["LoRA", "CanonicalLoRA"]
    said = {str(one.arg): ast.literal_eval(one.value) for one in apart.keywords}
    assert said["target_modules"] == ["linear_q", "linear_v", "linear_fc1_up"]
    assert said["dim"] == 8


def ask(cases: list[tuple[PlanRequest, ParallelPlan]], *arguments: str) -> Any:
    """What the real Megatron-Bridge says; skips without its checkouts."""
    own = environment(
        MEGATRON_BRIDGE_PATH=checkout("NVIDIA-NeMo/Megatron-Bridge"),
        MEGATRON_LM_PATH=megatron_lm_of("NVIDIA-NeMo/Megatron-Bridge"),
        PRETRAINED_CHECKPOINT=Path(__file__).parent,  # that it exists is all that is asked
    )
    questions = []
    for request, plan in cases:
        made = BRIDGE.write(request, plan)
        variables = {f.name: f.words[1] for f in made.flags if f.group == "environment"}
        questions.append(
            {
                "recipe": made.files["recipe.py"],
                "world": plan.accelerators,
                "environment": variables,
            }
        )
    result = subprocess.run(
        [sys.executable, ORACLE, *arguments],
        env=own,
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert result.returncode == 0, result.stderr
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("ANSWERS")]
    return json.loads(line.removeprefix("ANSWERS"))


@pytest.mark.exhaustive
def test_the_stored_list_is_that_of_the_real_classes() -> None:
    real = {
        kind: {
            name: {key: values for key, values in admits.items() if values}
            for name, admits in known.items()
        }
        for kind, known in ask([], "fields").items()
    }
    assert real == STORED


@pytest.mark.exhaustive
def test_the_real_validation_accepts_every_case_and_every_legal_draw() -> None:
    legal = legal_cases("megatron-bridge", 300)
    assert len(legal) > 10
    patterned = [
        launch(model, shape=(1, 8), **more)
        for model in PATTERNED.values()
        for more in ({}, {"pp": 2}, TP2)
    ]
    answers = ask([*CASES.values(), *legal, *patterned])
    assert [answer for answer in answers if answer] == []
