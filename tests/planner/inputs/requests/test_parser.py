"""From a user's document to a request, and what is wrong with one."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

import planner.inputs.requests.parser as documents
from cost_models.plans import ParallelPlan
from planner.documents.problems import MAX_PROBLEMS, Problem, RequestError, problem_document
from planner.inputs.requests.parser import parse_request
from tests.fixtures.call_bound import bounded_work

ASKED: dict[str, Any] = {
    "model": "llama-3.1-70b",
    "cluster": "8x8xh100-sxm",
    "training": {"seq_length": 8192, "global_batch_size": 1024},
}
DIMS = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
TIER = {"name": "ib", "bandwidth_bytes_per_s": 5e10, "latency_s": 1e-5}
CUSTOM = {
    "id": "mine",
    "name": "Mine",
    "memory_bytes": 8e10,
    "memory_bytes_per_s": 2e12,
    "peak_bf16_flop_per_s": 3e14,
}
LLAMA_CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "tie_word_embeddings": False,
}
H100 = {"accelerator": "h100-sxm", "nodes": 4}

# What is changed in ASKED -> (pointer, code, in the detail or the suggestions).
BAD: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "unknown model": ({"model": "lama-3.1-70b"}, "/model", "unknown_name", "llama-3.1-70b"),
    "model is a number": ({"model": 7}, "/model", "wrong_type", "got 7"),
    "model is a path": ({"model": "/etc/passwd"}, "/model", "unknown_name", "/etc/passwd"),
    "no model": ({"model": None}, "/model", "missing", "required"),
    "zero layers": ({"model": {**DIMS, "num_layers": 0}}, "/model/num_layers", "greater_than_equal",
                    ">= 1, got 0"),
    "negative width": ({"model": {**DIMS, "vocab_size": -5}}, "/model/vocab_size",
                       "greater_than_equal", "got -5"),
    "string for a number": ({"model": {**DIMS, "num_layers": "4"}}, "/model/num_layers",
                            "wrong_type", "the string '4'"),
    "true for a number": ({"model": {**DIMS, "num_layers": True}}, "/model/num_layers",
                          "wrong_type", "got true"),
    "null for a number": ({"model": {**DIMS, "num_layers": None}}, "/model/num_layers",
                          "wrong_type", "got null"),
    "float for a count": ({"model": {**DIMS, "num_layers": 4.5}}, "/model/num_layers",
                          "wrong_type", "4.5"),
    "huge": ({"model": {**DIMS, "num_layers": 10**30}}, "/model/num_layers", "less_than_equal",
             "<= 10000"),
    "beyond huge": ({"model": {**DIMS, "num_layers": 10**5000}}, "/model/num_layers", "too_large",
                    "limit"),
    "NaN": ({"model": {**DIMS, "hidden_dropout": float("nan")}}, "/model/hidden_dropout",
            "not_finite", "finite"),
    "contradictory dims": ({"model": {**DIMS, "num_query_groups": 3}}, "/model", "inconsistent",
                           "not a multiple of num_query_groups 3"),
    "heads do not divide": ({"model": {**DIMS, "num_attention_heads": 5}}, "/model", "inconsistent",
                            "give head_dim"),
    "misspelt field": ({"model": {**DIMS, "hiden_size": 4}}, "/model/hiden_size", "unknown_field",
                       "hidden_size"),
    "misspelt nested field": (
        {"model": {**DIMS, "moe": {"num_experts": 4, "top_k": 1, "expert_ffn_hidden_size": 8,
                                   "num_exprts": 1}}},
        "/model/moe/num_exprts", "unknown_field", "num_experts"),
    "nested limit": (
        {"model": {**DIMS, "moe": {"num_experts": 1, "top_k": 1, "expert_ffn_hidden_size": 8}}},
        "/model/moe/num_experts", "greater_than_equal", ">= 2"),
    "wrong word": ({"model": {**DIMS, "norm": "rms"}}, "/model/norm", "not_allowed", "rmsnorm"),
    "escape sequence in a config": ({"model": {**LLAMA_CONFIG, "_name_or_path": "a\x1b[1m"}},
                                    "/model", "not_importable", "printable"),
    "no number in a config": ({"model": {**LLAMA_CONFIG, "hidden_size": float("inf")}},
                              "/model/hidden_size", "not_importable", "Infinity"),
    "encoder config": ({"model": {"model_type": "bert", "type_vocab_size": 2}},
                       "/model/model_type", "not_importable", "bert"),
    "tokenizer config": ({"model": {"tokenizer_class": "T"}}, "/model/model_type", "not_importable",
                         "config.json"),
    "config of strings": ({"model": {**LLAMA_CONFIG, "hidden_size": "64"}}, "/model/hidden_size",
                          "not_importable", "64"),
    "unknown cluster": ({"cluster": "dgx-h10"}, "/cluster", "unknown_name", "dgx-h100"),
    "no nodes in shorthand": ({"cluster": "0x8xh100-sxm"}, "/cluster", "inconsistent", ">= 1"),
    "unknown in shorthand": ({"cluster": "8x8xh100-sxn"}, "/cluster", "inconsistent", "h100-sxm"),
    "endless name": ({"cluster": "9" * 9000}, "/cluster", "unknown_name", "no cluster"),
    "endless shorthand": ({"cluster": "9" * 9000 + "x8xh100"}, "/cluster", "inconsistent",
                          "not a cluster"),
    "cluster is a list": ({"cluster": []}, "/cluster", "wrong_type", "a list of 0"),
    "zero nodes": ({"cluster": {**H100, "nodes": 0}}, "/cluster/nodes", "greater_than_equal",
                   ">= 1, got 0"),
    "nodes in words": ({"cluster": {**H100, "nodes": "4"}}, "/cluster/nodes", "wrong_type", "'4'"),
    "no accelerator": ({"cluster": {"nodes": 4}}, "/cluster/accelerator", "missing", "required"),
    "unknown accelerator": ({"cluster": {**H100, "accelerator": "h100-sxn"}},
                            "/cluster/accelerator", "unknown_name", "h100-sxm"),
    "zero per node": ({"cluster": {**H100, "accelerators_per_node": 0}},
                      "/cluster/accelerators_per_node", "greater_than_equal", ">= 1"),
    "misspelt cluster field": ({"cluster": {**H100, "reserved_bytes_per_acelerator": 1}},
                               "/cluster/reserved_bytes_per_acelerator", "unknown_field",
                               "reserved_bytes_per_accelerator"),
    "negative reserve": ({"cluster": {**H100, "reserved_bytes_per_accelerator": -1}},
                         "/cluster/reserved_bytes_per_accelerator", "greater_than_equal", "-1"),
    "unknown preset": ({"cluster": {"preset": "dgx-h10"}}, "/cluster/preset", "unknown_name",
                       "dgx-h100"),
    "preset and accelerator counts": ({"cluster": {"preset": "8x8xh100-sxm", "nodes": 3}},
                                      "/cluster/preset", "inconsistent", "already says"),
    "no groups": ({"cluster": {"groups": []}}, "/cluster/groups", "length", "1 to 16"),
    "mixed cluster": ({"cluster": {"groups": [H100, {"accelerator": "a100-sxm", "nodes": 2}]}},
                      "/cluster/groups", "mixed_cluster", "got 2"),
    "no bf16": ({"cluster": "1x8xv100-sxm2-32gb",
                 "training": {"seq_length": 8, "global_batch_size": 8, "precision": "bf16"}},
                "/training/precision", "unsupported_precision", "it has fp16"),
    "no fp8": ({"cluster": "1x8xa100-sxm",
                "training": {"seq_length": 8, "global_batch_size": 8, "precision": "fp8"}},
               "/training/precision", "unsupported_precision", "bf16, fp16"),
    "nothing left": ({"cluster": {**H100, "reserved_bytes_per_accelerator": 1e11}},
                     "/cluster/reserved_bytes_per_accelerator", "no_memory_left", "must be below"),
    "too long": ({"model": "gpt3-175b", "training": {"seq_length": 4096, "global_batch_size": 8}},
                 "/training/seq_length", "less_than_equal", "must be <= 2048"),
    "nothing left to train": (
        {"training": {"seq_length": 8, "global_batch_size": 8,
                      "frozen": ["embedding", "norms", "mixers", "feed_forwards", "head"]}},
        "/training/frozen", "inconsistent", "nothing of"),
    "no encoder": ({"training": {"seq_length": 8, "global_batch_size": 8, "encoder_tokens": 4}},
                   "/training/encoder_tokens", "inconsistent", "no encoder"),
    "bad group": ({"cluster": {"groups": [H100, {**H100, "nodes": -1}]}},
                  "/cluster/groups/1/nodes", "greater_than_equal", "-1"),
    "tiers do not nest": (
        {"cluster": {**H100, "network": [{**TIER, "domain_accelerators": 3},
                                         {**TIER, "domain_accelerators": 8}]}},
        "/cluster", "inconsistent", "whole domains"),
    "custom accelerator without memory": (
        {"cluster": {"accelerator": {**CUSTOM, "memory_bytes": 0}, "nodes": 1,
                     "accelerators_per_node": 1, "network": [TIER]}},
        "/cluster/accelerator/memory_bytes", "greater_than_equal", ">= 1"),
    "unknown profile of an accelerator": (
        {"cluster": {"accelerator": {**CUSTOM, "efficiency_profile": "h100-sxn"}, "nodes": 1,
                     "accelerators_per_node": 1, "network": [TIER]}},
        "/cluster/accelerator/efficiency_profile", "unknown_name", "h100-sxm"),
    "unknown profile in a group": (
        {"cluster": {"groups": [{"accelerator": {**CUSTOM, "efficiency_profile": "x"}, "nodes": 1,
                                 "accelerators_per_node": 1, "network": [TIER]}]}},
        "/cluster/groups/0/accelerator/efficiency_profile", "unknown_name", "efficiency profile"),
    "unknown profile over a preset": (
        {"cluster": {"preset": "dgx-h100", "accelerator": {**CUSTOM, "efficiency_profile": "x"}}},
        "/cluster/accelerator/efficiency_profile", "unknown_name", "efficiency profile"),
    "escape sequence in a name": ({"model": {**DIMS, "name": "a\x1b[2J"}}, "/model/name",
                                  "string_pattern_mismatch", "printable"),
    "escape sequence in an accelerator": (
        {"cluster": {"accelerator": {**CUSTOM, "name": "a\nb"}, "nodes": 1,
                     "accelerators_per_node": 1, "network": [TIER]}},
        "/cluster/accelerator/name", "string_pattern_mismatch", "printable"),
    "escape sequence in a tier": (
        {"cluster": {**H100, "network": [{**TIER, "name": "\x9b"}]}},
        "/cluster/network/0/name", "string_pattern_mismatch", "printable"),
    "half a pair": ({"model": {**DIMS, "name": "\ud800"}}, "/model/name", "not_text", "surrogate"),
    "half a pair in a key": ({"\udfff": 1}, "/?", "not_text", "surrogate"),
    "half a pair in the marks": ({"defaulted": ["\ud800"]}, "/defaulted/0", "not_text",
                                 "surrogate"),
    "half a pair in the guesses": ({"guessed": ["a\udc00"]}, "/guessed/0", "not_text",
                                   "surrogate"),
    "no batch": ({"training": {"seq_length": 1}}, "/training/global_batch_size", "missing",
                 "required"),
    "unknown precision": ({"training": {**ASKED["training"], "precision": "bf61"}},
                          "/training/precision", "not_allowed", "bf16"),
    "infinite tokens": ({"training": {**ASKED["training"], "tokens": float("inf")}},
                        "/training/tokens", "not_finite", "finite"),
    "misspelt limit": ({"search": {"tpp": 8}}, "/search/tpp", "unknown_field", "vpp"),
    "limit of zero": ({"search": {"tp": 0}}, "/search/tp", "greater_than_equal", ">= 1"),
    "limit in words": ({"search": {"tp": "8"}}, "/search/tp", "wrong_type", "'8'"),
    "limit in a list": ({"search": {"tp": [1, "2"]}}, "/search/tp/1", "wrong_type", "'2'"),
    "limits in values": ({"search": {"tp": {"values": [1, 0]}}}, "/search/tp/values/1",
                         "greater_than_equal", ">= 1"),
    "no modules": ({"search": {"recompute_modules": [[]]}}, "/search/recompute_modules/0", "empty",
                   "at least one"),
    "no module": ({"search": {"recompute_modules": []}}, "/search/recompute_modules", "empty",
                  "at least one"),
    "a module twice": ({"search": {"recompute_modules": ["mlp", "mlp"]}},
                       "/search/recompute_modules", "duplicate_value", "names mlp twice"),
    "a module twice in a plan": (
        {"plan": {"recompute": "selective", "recompute_modules": ["mlp", "core_attn", "mlp"]}},
        "/plan/recompute_modules", "duplicate_value", "names mlp twice"),
    "no layers": ({"search": {"stage_layers": {"values": [[40, 40], []]}}},
                  "/search/stage_layers/values/1", "empty", "at least one"),
    "limits of another type": ({"search": {"limits": False}}, "/search/limits", "wrong_type",
                               "got false"),
    "limits that contradict": ({"search": {"tp": 2, "limits": {"tp": 4}}}, "/search/tp",
                               "inconsistent", "/search/limits/tp"),
    "no values": ({"search": {"tp": []}}, "/search/tp", "length", "1 to 256"),
    "crossed range": ({"search": {"tp": {"min": 9, "max": 3}}}, "/search/tp", "inconsistent",
                      "min 9 is above max 3"),
    "empty range": ({"search": {"tp": {}}}, "/search/tp", "missing", "min, max or values"),
    "misspelt range": ({"search": {"tp": {"mim": 1}}}, "/search/tp/mim", "unknown_field", "min"),
    "range of words": ({"search": {"recompute": {"min": 1}}}, "/search/recompute", "not_a_range",
                       "no order"),
    "wrong word in a limit": ({"search": {"recompute": ["full", "ful"]}}, "/search/recompute/1",
                              "not_allowed", "full"),
    "unknown framework": ({"search": {"framework": "megaton"}}, "/search/framework",
                          "unknown_name", "megatron"),
    "unknown objective": ({"search": {"objective": "speed"}}, "/search/objective", "not_allowed",
                          "tokens_per_s"),
    "zero top_k": ({"search": {"top_k": 0}}, "/search/top_k", "greater_than_equal", ">= 1"),
    "plan of zero": ({"plan": {"tp": 0}}, "/plan/tp", "greater_than_equal", ">= 1"),
    "contradictory plan": ({"plan": {"recompute": "selective"}}, "/plan", "inconsistent",
                           "recompute_modules"),
    "unknown profile": ({"profile": "fast"}, "/profile", "unknown_name", "fast"),
    "unknown part": ({"trainning": {}}, "/trainning", "unknown_field", "training"),
    "marks of another type": ({"defaulted": 3}, "/defaulted", "wrong_type", "a list of strings"),
    "escape sequence in the guesses": ({"guessed": ["fine", "\x1b[31m"]}, "/guessed/1",
                                       "string_pattern_mismatch", "printable"),
    "guesses of another type": ({"guessed": 0}, "/guessed", "wrong_type", "got 0"),
}  # fmt: skip


def text_of(document: Any) -> str:
    """As JSON, with numbers of any length: Python itself stops at 4300 digits."""
    most = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(document)
    finally:
        sys.set_int_max_str_digits(most)


@pytest.mark.parametrize(("over", "pointer", "code", "says"), BAD.values(), ids=BAD)
def test_bad_input(over: dict[str, Any], pointer: str, code: str, says: str) -> None:
    with bounded_work(), pytest.raises(RequestError) as caught:
        parse_request({**ASKED, **over})
    found = {(problem.pointer, problem.code): problem for problem in caught.value.problems}
    assert (pointer, code) in found
    text = str(found[pointer, code])
    assert says in text
    assert len(text) < 600


def test_all_problems_at_once() -> None:
    with pytest.raises(RequestError) as caught:
        parse_request({"model": "x", "training": {"seq_length": 0}, "search": {"tp": 0}, "q": 1})
    assert {problem.pointer for problem in caught.value.problems} == {
        "/model", "/cluster", "/training/seq_length", "/training/global_batch_size", "/search/tp",
        "/q",
    }  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "over",
    [
        {f"x{i}": 0 for i in range(19_000)},
        {"model": {**DIMS, **{f"hiden_size{i}": 0 for i in range(19_000)}}},
        {"search": {f"tp{i}": 0 for i in range(19_000)}},
        {"search": {"limits": {f"tp{i}": 0 for i in range(19_000)}}},
        {"model": {**DIMS, "x": 1}, "training": {f"tokens{i}": 0 for i in range(18_999)}},
    ],
    ids=["top", "model", "search", "limits", "training"],
)
def test_a_long_list_of_problems_is_cut(over: dict[str, Any]) -> None:
    with bounded_work(), pytest.raises(RequestError) as caught:
        parse_request({**ASKED, **over})
    *listed, rest = caught.value.problems
    assert len(listed) == MAX_PROBLEMS
    assert all(problem.code != "more" for problem in listed)
    missing = 2 if "training" in over else 0
    assert (rest.code, rest.got) == ("more", 19_000 - MAX_PROBLEMS + missing)
    document = problem_document(caught.value.problems)
    assert document["detail"].startswith(f"{19_000 + missing:,} problems")
    again = caught.value.under("/x").problems
    assert (len(again), again[-1].got) == (MAX_PROBLEMS + 1, rest.got)


def test_what_the_catalog_fills_in_is_marked() -> None:
    price, power = "price_usd_per_accelerator_hour", "node_power_watts"
    for cluster in ("8x8xh100-sxm", H100, {"preset": "dgx-h100"}):
        marks = parse_request({**ASKED, "cluster": cluster}).defaulted
        assert {f"/cluster/{price}", f"/cluster/{power}", "/cluster/pue"} <= set(marks)
    (mixed,) = [parse_request({**ASKED, "cluster": {"groups": [{**H100, price: 2.0}]}}).defaulted]
    assert f"/cluster/groups/0/{power}" in mixed
    assert f"/cluster/groups/0/{price}" not in mixed
    own = {"accelerator": CUSTOM, "nodes": 1, "accelerators_per_node": 1, "network": [TIER]}
    assert f"/cluster/{price}" not in parse_request({**ASKED, "cluster": own}).defaulted


def test_defaults_are_marked() -> None:
    request = parse_request(ASKED)
    assert request.cluster.accelerators == 64
    assert "/training/precision" in request.defaulted
    assert "/cluster/reserved_bytes_per_accelerator" in request.defaulted
    assert "/training/seq_length" not in request.defaulted
    given = {**ASKED["training"], "precision": "fp8"}
    assert "/training/precision" not in parse_request({**ASKED, "training": given}).defaulted


@pytest.mark.parametrize(
    "over",
    [
        {},
        {"model": DIMS},
        {"model": LLAMA_CONFIG},
        {"cluster": H100},
        {"cluster": {"groups": [H100], "pue": 1.1}},
        {"cluster": {"preset": "dgx-h100", "nodes": 3, "price_usd_per_accelerator_hour": 2.0}},
        {"search": {"tp": 8, "pp": {"max": 4}, "recompute": ["full", "none"], "open": ["cp_kind"]}},
        {"search": {"framework": "megatron-lm"}, "plan": {"tp": 8, "pp": 2, "vpp": 2}},
        {"plan": {"recompute": "selective", "recompute_modules": ["core_attn"]}},
    ],
)
def test_a_request_can_be_asked_again(over: dict[str, Any]) -> None:
    request = parse_request({**ASKED, **over})
    assert parse_request(request.document()) == request


def test_a_model_of_the_hub_is_the_preset_whose_shape_it_has() -> None:
    named = parse_request({**ASKED, "model": "meta-llama/Llama-3.2-1B-Instruct"})
    assert (named.model.name, named.guessed) == ("llama-3.2-1b", ())
    own = parse_request({**ASKED, "model": "my-llama-3.1-8b-sft"})
    assert own.model.name == "llama-3.1-8b"
    assert own.guessed == (
        "my-llama-3.1-8b-sft is taken to have the shape of llama-3.1-8b, which it names",
    )
    # Asked again as it was answered, it says the same.
    assert parse_request(own.document()).guessed == own.guessed


def test_cluster_forms_agree() -> None:
    short = parse_request(ASKED).cluster
    flat = {"accelerator": "h100-sxm", "nodes": 8, "accelerators_per_node": 8}
    for form in (flat, {"groups": [flat]}, {"preset": "8x8xh100-sxm"}):
        cluster = parse_request({**ASKED, "cluster": form}).cluster
        assert cluster.groups == short.groups
        assert cluster.pue == short.pue
    cheaper = {**flat, "price_usd_per_accelerator_hour": 1.0, "network": [TIER]}
    (group,) = parse_request({**ASKED, "cluster": cheaper}).cluster.groups
    assert group.price_usd_per_accelerator_hour == 1.0
    assert [tier.name for tier in group.network] == ["ib"]


def test_custom_accelerator() -> None:
    own = {"accelerator": CUSTOM, "nodes": 2, "accelerators_per_node": 4, "network": [TIER]}
    cluster = parse_request({**ASKED, "cluster": own}).cluster
    assert cluster.accelerators == 8
    assert cluster.groups[0].accelerator.id == "mine"


def test_limits() -> None:
    limits = parse_request(
        {
            **ASKED,
            "search": {
                "tp": 8,
                "pp": {"min": 2, "max": 4},
                "dp": [2, 1, 2],
                "recompute": "full",
                "sequence_parallel": True,
                "recompute_modules": ["core_attn", "mlp"],
                "stage_layers": [[40, 40], [41, 39]],
            },
        }
    ).search.limits
    assert {name: bounds.values for name, bounds in limits.items()} == {
        "tp": (8,),
        "pp": None,
        "dp": (2, 1),
        "recompute": ("full",),
        "sequence_parallel": (True,),
        "recompute_modules": (("core_attn", "mlp"),),
        "stage_layers": ((40, 40), (41, 39)),
    }
    assert (limits["pp"].min, limits["pp"].max) == (2, 4)
    twice = {"tp": [1, 2], "limits": {"tp": {"values": [1, 2]}}}
    assert parse_request({**ASKED, "search": twice}).search.limits["tp"].values == (1, 2)


def test_plan_is_completed() -> None:
    request = parse_request({**ASKED, "plan": {"tp": 8, "pp": 2, "vpp": 2}})
    assert request.plan == ParallelPlan(tp=8, pp=2, vpp=2, dp=4, schedule="interleaved-1f1b")
    assert "/plan/dp" in request.defaulted
    recompute = {"recompute": "selective", "recompute_modules": ["mlp", "core_attn"]}
    plan = parse_request({**ASKED, "plan": recompute}).plan
    assert plan is not None
    assert plan.recompute_modules == ("core_attn", "mlp")
    framework = parse_request({**ASKED, "search": {"framework": "deepspeed"}, "plan": {}})
    assert framework.plan is not None
    assert (framework.plan.runtime, framework.plan.dp) == ("deepspeed", 64)


def test_a_question_about_a_plan_needs_one() -> None:
    with pytest.raises(RequestError, match="/plan: is required"):
        parse_request(ASKED, need_plan=True)


def test_names_are_never_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser opens nothing, whatever a name looks like."""

    def refuse(*arguments: object, **keywords: object) -> None:
        raise AssertionError("a file was opened")

    parse_request(ASKED)  # the catalog is loaded
    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr("pathlib.Path.open", refuse)
    monkeypatch.setattr("pathlib.Path.read_text", refuse)
    for name in ("config.json", "./config.json", "/etc/passwd", "../x.yaml"):
        with pytest.raises(RequestError):
            documents.parse_model(name)


@pytest.mark.parametrize(
    ("pattern", "pointer", "said"),
    [
        ([[{"kind": "atention"}]], "/0/0/kind", "did you mean attention"),
        ([[{"kind": "mlp"}, {}]], "/0/1/kind", "must be one of attention, compressed_attention"),
        ([[{"kind": "attention", "window": -3}]], "/0/0/window", "must be >= 1, got -3"),
        ([[{"kind": "attention", "windo": 1}]], "/0/0/windo", "did you mean window"),
        (
            [[{"kind": "parallel", "branches": [{"kind": "mlp"}, {"kind": "mpl"}]}]],
            "/0/0/branches/1/kind",
            "did you mean mlp",
        ),
        ([[{"kind": "parallel", "branches": []}]], "", "parallel needs two branches"),
        ([[{"kind": "attention"}]] * 99, "", "99 layers of 32"),
        ([[{"kind": "latent_attention"}]], "", "latent_attention needs mla"),
        ([["attention"]], "/0/0", "must be an object"),
        (["attention"], "/0", "must be a list"),
    ],
)
def test_a_pattern_of_layers_is_refused_at_its_place(
    pattern: list[object], pointer: str, said: str
) -> None:
    dims = {
        "num_layers": 32, "hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 32000,
        "layer_pattern": pattern,
    }  # fmt: skip
    request = {
        "model": dims, "cluster": "1x8xh100-sxm",
        "training": {"seq_length": 1024, "global_batch_size": 8},
    }  # fmt: skip
    with pytest.raises(RequestError) as caught:
        parse_request(request)
    (problem,) = caught.value.problems
    assert problem.pointer == ("/model/layer_pattern" + pointer if pointer else "/model")
    assert said in str(caught.value)


def test_a_field_of_a_part_is_refused_with_its_place() -> None:
    with pytest.raises(RequestError) as refused:
        parse_request({"model": "gpt2", "cluster": "1x8xh100-sxm", "seq_length": 1024, "tp": 2})
    assert "/seq_length: no field 'seq_length' here: it stands in /training" in str(refused.value)
    assert "/tp: no field 'tp' here: it stands in /plan" in str(refused.value)


def test_what_is_allowed_is_said_where_no_name_is_near() -> None:
    far = Problem(
        pointer="/inputs/0", code="unknown_name", detail="no input 'b'", allowed=("c", "d")
    )
    assert str(far) == "/inputs/0: no input 'b'; allowed: c, d"
    near = far.model_copy(update={"did_you_mean": ("c",)})
    assert str(near) == "/inputs/0: no input 'b'; did you mean c?"
