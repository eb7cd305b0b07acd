"""Models whose layers follow a pattern, in Megatron-LM's options: written, read back, refused."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from cost_models.spec import ModelSpec
from planner import frameworks
from planner.frameworks.megatron import patterns, reader
from planner.frameworks.megatron.pattern_rules import RULES
from tests.fixtures.draws import Case, megatron_case
from tests.fixtures.launches import TP2, launch, misfits, stored_flags, unreached
from tests.fixtures.patterns import (
    ATTENTION,
    DELTA,
    EXPERTS,
    GATED,
    INDEXER,
    MAMBA,
    MLP,
    PATTERNED,
    SPARSE,
    WINDOW,
)

MEGATRON = frameworks.get("megatron")
STORED = stored_flags("megatron")


def changed(name: str, **fields: Any) -> ModelSpec:
    return ModelSpec(**{**PATTERNED[name].model_dump(), **fields})


def options(case: Case) -> dict[str, Any]:
    return {flag.name: flag.value for flag in MEGATRON.write(*case).flags}


def drawn(name: str, count: int) -> list[Case]:
    """Drawn plans that this model can run."""
    random, model, found = Random(name), PATTERNED[name], list[Case]()
    while len(found) < count:
        try:
            request, plan = megatron_case(random)
        except ValidationError:
            continue
        request = request.model_copy(update={"model": model})
        if model.moe is None:
            plan = plan.model_copy(update={"ep": 1, "etp": 1, "overlap_ep": False})
        if not MEGATRON.reasons(request, plan):
            found.append((request, plan))
    return found


@pytest.mark.parametrize("name", PATTERNED)
def test_every_flag_exists_in_the_versions_that_are_named(name: str) -> None:
    for request, plan in [launch(PATTERNED[name]), *drawn(name, 10)]:
        made = MEGATRON.write(request, plan)
        words = [word for flag in made.flags if flag.name.startswith("--") for word in flag.words]
        for version in STORED["versions"]:
            if version >= ("0.19" if made.versions.startswith("core 0.19") else "0.18"):
                assert misfits(words, STORED["flags"], version) == []


@pytest.mark.parametrize(
    ("name", "plan", "pattern"),
    [
        ("nemotron-h", {}, "M-M-M*-MM-M-M*-M"),
        ("nemotron-h", {"pp": 2}, "M-M-M*-M|M-M-M*-M"),
        ("nemotron-h", {"pp": 4, "stage_layers": (3, 5, 5, 3)}, "M-M|-M*-M|M-M-M|*-M"),
        ("nemotron-3", {}, "MEMEM*EEMEMEM*EE/E"),
        ("bamba", {"pp": 2}, "M-M-*-M-M-*-|M-M-*-M-M-*-"),
        (
            "bamba",
            {"pp": 2, "vpp": 2, "schedule": "interleaved-1f1b"},
            "M-M-*-|M-M-*-|M-M-*-|M-M-*-",
        ),
        ("every-letter", {}, "M*EG-M*EG-M*EG-"),
    ],
)
def test_letters_of_a_hybrid_model(name: str, plan: dict[str, Any], pattern: str) -> None:
    said = options(launch(PATTERNED[name], **plan))
    assert said["--hybrid-layer-pattern"] == pattern
    assert not {"--num-layers", "--mtp-num-layers", "--moe-layer-freq"} & set(said)
    files = MEGATRON.write(*launch(PATTERNED[name], **plan)).files
    assert "pretrain_hybrid.py" in files["launch.sh"]


def test_options_of_layers_of_a_gpt_model() -> None:
    qwen = options(launch(PATTERNED["qwen3-next"]))
    assert qwen["--linear-attention-freq"] == "[1]*3+[0]*1+[1]*3+[0]*1+[1]*3+[0]*1+[1]*3+[0]*1" or (
        qwen["--linear-attention-freq"] == "[1,1,1,0,1,1,1,0,1,1,1,0,1,1,1,0]"
    )
    assert qwen["--linear-num-value-heads"] == "16"
    assert "--attention-output-gate" in qwen
    assert options(launch(PATTERNED["smollm3"]))["--no-rope-freq"].count("1") == 4
    windows = options(launch(PATTERNED["windows"]))
    assert windows["--window-size"] == "127,0"
    assert windows["--window-attn-skip-freq"] == "[1]*3+[0]*3+[1]*3+[0]*3"
    assert options(launch(PATTERNED["deepseek-v3.2"]))["--dsa-indexer-topk"] == "256"
    assert options(launch(PATTERNED["nemotron-h"]))["--position-embedding-type"] == "none"


def said_of_the_model(case: Case) -> list[tuple[str, Any]]:
    flags = MEGATRON.render(*case).flags
    return [(flag.name, flag.value) for flag in flags if flag.group == "MODEL_ARGS"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", PATTERNED)
def test_what_is_written_reads_back_as_what_writes_it_again(name: str) -> None:
    for request, plan in drawn(name, 8):
        found = MEGATRON.read(MEGATRON.write(request, plan).files, None)  # type: ignore[misc]
        assert (found.refusals, found.unknown) == ((), ())
        if any("split the layers of their stage evenly" in text for text in found.assumed):
            assert (name, plan.vpp > 1) == ("every-letter", True)  # one of its layers is of two
            continue
        again = request.model_copy(update={"model": found.model, "training": found.training})
        assert said_of_the_model((again, found.plan)) == said_of_the_model((request, plan))
        flat = [block for layer in patterns.every_layer(request.model) for block in layer]
        read = [block for layer in patterns.every_layer(found.model) for block in layer]
        assert [block.kind for block in flat] == [block.kind for block in read]


@pytest.mark.parametrize("name", ["nemotron-3", "qwen3-next", "deepseek-v3.2", "smollm3"])
def test_the_model_reads_back_whole(name: str) -> None:
    request, plan = launch(PATTERNED[name])
    found = reader.read(MEGATRON.write(request, plan).files, None).model
    placed = patterns.position(request.model) == "none"
    expected = request.model.model_dump(exclude={"name", "layer_pattern", "position"})
    got = found.model_dump(exclude={"name", "layer_pattern", "position"})
    assert got == expected
    assert found.position == ("none" if placed else "rope")
    if not placed:
        assert patterns.every_layer(found) == patterns.every_layer(request.model)


HEAD = (
    "torchrun --nproc_per_node 8 pretrain_hybrid.py --hidden-size 1024 --num-attention-heads 16 "
    "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --vocab-size 32000 "
    "--bf16 "
)


@pytest.mark.parametrize(
    ("words", "pattern"),
    [  # as allocate_layers of core 0.12 has them
        ("--hybrid-attention-ratio 0.08 --hybrid-mlp-ratio 0.5",
         "M-M-M--M-M*-M-M-M-M--M*-M-M-M-M-M*--M-M-M-M-M*-M--M-M-M-"),
        ("--hybrid-attention-ratio 0.05", "*".join(["M" * 13, "M" * 14, "M" * 13, "M" * 13])),
        ("--hybrid-mlp-ratio 0.25", "MMM-" * 14),
    ],
)  # fmt: skip
def test_shares_of_layers_of_a_hybrid_model(words: str, pattern: str) -> None:
    program = HEAD.replace("pretrain_gpt", "pretrain_mamba")
    script = re.sub(r"--num-layers \d+", "", program) + f"--num-layers 56 {words}"
    letters = {"mamba2": "M", "attention": "*", "mlp": "-"}
    model = reader.read({"train.sh": script}, None).model
    every = patterns.every_layer(model)
    assert "".join(letters[block.kind] for (block,) in every) == pattern


def test_defaults_and_old_names_of_a_hybrid_model() -> None:
    found = reader.read({"train.sh": HEAD + "--hybrid-override-pattern M-M*-"}, None)
    assert found.model.num_layers == 5
    (mamba,) = patterns.blocks_of(found.model, patterns.Mamba2)
    assert (mamba.num_heads, mamba.head_dim, mamba.state_size, mamba.num_groups) == (32, 64, 128, 8)
    assert found.refusals == ()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--hybrid-layer-pattern 'M|-|M' --pipeline-model-parallel-size 2", "3 chunks are no"),
        ("--hybrid-layer-pattern M-/M/-", "all prediction layers"),
    ],
)
def test_patterns_that_megatron_refuses(words: str, text: str) -> None:
    found = reader.read({"train.sh": HEAD + words}, None)
    assert any(text in refusal.reason.text for refusal in found.refusals)


# One change of a model, and words of the reason that it has no option for it.
UNSAID: dict[str, tuple[ModelSpec, str]] = {
    name: (changed(base, **fields), text)
    for name, base, fields, text in (
        ("chunks", "smollm3", {"layer_pattern": [[{**ATTENTION, "chunk": 64}, MLP]]}, "chunked"),
        (
            "heads",
            "smollm3",
            {"layer_pattern": [[{**ATTENTION, "num_attention_heads": 8}, MLP]]},
            "same heads",
        ),
        (
            "values",
            "smollm3",
            {"layer_pattern": [[{**ATTENTION, "value_head_dim": 16}, MLP]]},
            "the width of keys",
        ),
        (
            "shared keys",
            "smollm3",
            {"layer_pattern": [[{**ATTENTION, "key_values": "earlier"}, MLP]]},
            "their own key and value",
        ),
        (
            "some gates",
            "smollm3",
            {"layer_pattern": [[ATTENTION, MLP], [GATED, MLP]]},
            "output gate is elementwise",
        ),
        (
            "indexer",
            "smollm3",
            {"layer_pattern": [[{**ATTENTION, "indexer": INDEXER}, MLP]]},
            "only latent attention",
        ),
        (
            "two windows",
            "smollm3",
            {"layer_pattern": [[WINDOW, MLP], [{**ATTENTION, "window": 64}, MLP]]},
            "windows have one width",
        ),
        (
            "some sinks",
            "smollm3",
            {"layer_pattern": [[ATTENTION, MLP], [{**ATTENTION, "sinks": True}, MLP]]},
            "have sinks, or none",
        ),
        (
            "some norms",
            "smollm3",
            {"layer_pattern": [[ATTENTION, MLP], [{**ATTENTION, "qk_norm": "head"}, MLP]]},
            "query/key norms, or none",
        ),
        (
            "latent and Mamba",
            "deepseek-v3.2",
            {"layer_pattern": [[MAMBA], [SPARSE], [EXPERTS]]},
            "no norms of the latents",
        ),
        (
            "latent and plain",
            "deepseek-v3.2",
            {"layer_pattern": [[ATTENTION, EXPERTS], [SPARSE, EXPERTS]]},
            "latent in every layer",
        ),
        *(
            (
                option,
                "deepseek-v3.2",
                {"layer_pattern": [[{**SPARSE, option: value}, EXPERTS]]},
                text,
            )
            for option, value, text in (
                ("window", 64, "has no window"),
                ("gate", "head", "has no output gate"),
                ("rope_key_norm", True, "has no norm"),
            )
        ),
        (
            "some indexers",
            "deepseek-v3.2",
            {"layer_pattern": [[SPARSE, MLP], [{"kind": "latent_attention"}, EXPERTS]]},
            "have an indexer, or none",
        ),
        (
            "indexers of two shapes",
            "deepseek-v3.2",
            {
                "layer_pattern": [
                    [SPARSE, MLP],
                    [{**SPARSE, "indexer": {**INDEXER, "top_k": 64}}, EXPERTS],
                ]
            },
            "have one shape",
        ),
        *(
            (
                option,
                "deepseek-v3.2",
                {"layer_pattern": [[{**SPARSE, "indexer": {**INDEXER, option: value}}, EXPERTS]]},
                text,
            )
            for option, value, text in (
                ("shared", True, "an earlier indexer"),
                ("key_norm_bias", False, "keys has a bias"),
            )
        ),
        (
            "indexer and delta net",
            "deepseek-v3.2",
            {"layer_pattern": [[SPARSE, EXPERTS], [DELTA, EXPERTS]]},
            "not both",
        ),
        (
            "two Mambas",
            "mamba-2",
            {"layer_pattern": [[MAMBA], [{**MAMBA, "state_size": 64}]]},
            "Mamba-2 layers have one shape",
        ),
        (
            "no convolution bias",
            "mamba-2",
            {"layer_pattern": [[{**MAMBA, "convolution_bias": False}]]},
            "a convolution of 4 taps",
        ),
        (
            "two delta nets",
            "qwen3.5",
            {"layer_pattern": [[DELTA, MLP], [{**DELTA, "key_head_dim": 64}, MLP]]},
            "delta nets have one shape",
        ),
        (
            "channel decays",
            "qwen3.5",
            {"layer_pattern": [[{**DELTA, "channel_decays": True}, MLP]]},
            "one decay per head",
        ),
        (
            "no convolution",
            "qwen3.5",
            {"layer_pattern": [[{**DELTA, "convolution": 1}, MLP]]},
            "have a short convolution",
        ),
        *(
            (f"mlp {option}", "bamba", {"layer_pattern": [[MAMBA, {**MLP, option: value}]]}, text)
            for option, value, text in (
                ("width", 256, "MLPs have one width"),
                ("gated", False, "are gated, or none"),
                ("bias", True, "have biases, or none"),
            )
        ),
        (
            "latent biases",
            "nemotron-3",
            {
                "moe": {
                    "num_experts": 8,
                    "top_k": 2,
                    "expert_ffn_hidden_size": 256,
                    "latent_size": 128,
                    "latent_bias": True,
                }
            },
            "both have biases, or neither",
        ),
        (
            "convolutions",
            "smollm3",
            {"layer_pattern": [[{"kind": "short_convolution"}, MLP]], "qk_norm": "head"},
            "no option for layers with short convolution; Native PyTorch, Hugging Face "
            "accelerate can",
        ),
        ("copies", "smollm3", {"residual_streams": 4}, "no option for hyper-connections"),
    )
}


@pytest.mark.parametrize("name", UNSAID)
def test_what_has_no_option_is_refused_in_words(name: str) -> None:
    model, text = UNSAID[name]
    reasons = MEGATRON.reasons(*launch(model))
    assert [r for r in reasons if r.code == "framework_unsupported" and text in r.text], reasons


REFUSED = [
    ("Mamba-2 heads must", launch(PATTERNED["mamba-2"], shape=(1, 3), tp=3)),
    (
        "of a rank a multiple or a divisor of cp",
        launch(
            changed("mamba-2", layer_pattern=[[{**MAMBA, "num_heads": 24, "num_groups": 12}]]),
            tp=2,
            cp=4,
        ),
    ),
    ("heads of a gated delta net", launch(PATTERNED["qwen3.5"], cp=16)),
    (
        "a multiple of 16",
        launch(
            changed("mamba-2", layer_pattern=[[{**MAMBA, "num_heads": 24}]]),
            training={"precision": "fp8"},
        ),
    ),
    ("all_gather, not p2p", launch(PATTERNED["deepseek-v3.2"], cp=2)),
    ("does not support biases", launch(changed("deepseek-v3.2", attention_output_bias=True))),
    ("before core 0.20 Megatron-FSDP", launch(PATTERNED["bamba"], zero_stage=3)),
    ("no activation offload", launch(PATTERNED["bamba"], offload_activations=True)),
    (
        "no schedule for overlap_ep",
        launch(PATTERNED["nemotron-3"], ep=2, overlap_ep=True, **TP2),
    ),
    (
        "different numbers",
        launch(PATTERNED["every-letter"], recompute="full", recompute_num_layers=1),
    ),
]


@pytest.mark.parametrize(("text", "case"), REFUSED, ids=[text for text, _ in REFUSED])
def test_refusals(text: str, case: Case) -> None:
    assert [reason for reason in MEGATRON.reasons(*case) if text in reason.text]


def test_every_rule_of_patterns_is_reached_by_a_refusal() -> None:
    assert not set(RULES) & unreached(MEGATRON, [case for _, case in REFUSED])
