"""`planner mcp`, asked by the official client over standard input and output."""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio
import pytest

from planner.questions.examples import examples

pytestmark = pytest.mark.slow
PARTS: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": "1x8xh100-sxm",
    "training": {"seq_length": 4096, "global_batch_size": 64},
}
STEP: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": "1x8xh100-sxm",
    "reinforcement": {"prompts": 32, "samples": 8, "prompt_tokens": 256, "response_tokens": 512},
}
LINT: dict[str, Any] = next(iter(examples("lint").values()))["value"]
# What no tool can take: wrong types, deep and wide documents, numbers that are none, paths.
DEEP: Any = []
for _ in range(100):
    DEEP = [DEEP]
JUNK: dict[str, dict[str, Any]] = {
    "no model": {"cluster": "1x8xh100-sxm", "training": {}},
    "a list": PARTS | {"model": [1]},
    "deep": PARTS | {"search": {"limits": DEEP}},
    "wide": PARTS | {"search": {f"k{n}": n for n in range(20_000)}},
    "long": PARTS | {"model": "x" * 1_000_000},
    "a path": PARTS | {"model": "../../../../etc/passwd"},
    "a link": PARTS | {"model": "https://example.org/config.json"},
    "negative": PARTS | {"training": {"seq_length": -1, "global_batch_size": 1e300}},
    "too many": PARTS | {"cluster": f"{10**30}x8xh100-sxm"},
    "null byte": PARTS | {"cluster": "1x8xh100-sxm\0"},
    "unknown part": PARTS | {"fields": ["best.nothing"]},
}


def test_every_tool_answers() -> None:
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    async def ask() -> None:
        command = StdioServerParameters(command=sys.executable, args=["-m", "planner.cli", "mcp"])
        async with Client(stdio_client(command)) as client:
            tools = (await client.list_tools()).tools
            names = {"plan", "estimate", "why", "emit", "lint", "size", "fit", "rl", "rl-emit"}
            assert {tool.name for tool in tools} == names
            assert all(tool.description for tool in tools)
            answers = {
                name: await client.call_tool(name, asked)
                for name, asked in {
                    "plan": PARTS,
                    "estimate": PARTS | {"plan": {"tp": 8}},
                    "why": PARTS | {"plan": {"tp": 8}},
                    "emit": PARTS | {"plan": {"tp": 8}},
                    "rl": STEP,
                    "rl-emit": STEP,
                    "lint": LINT,
                    "size": {
                        "model": "llama-3.1-8b",
                        "training": PARTS["training"] | {"tokens": 1e12},
                        "sizing": {"accelerators": ["h100-sxm"], "sizes": [64]},
                    },
                    "fit": {
                        "model": "llama-3.1-8b",
                        "cluster": "1x1xrtx-4090",
                        "fit": {"methods": ["qlora"], "lengths": [2048]},
                    },
                }.items()
            }
            wrong = await client.call_tool("plan", PARTS | {"model": "lama-3.1-8b"})
            kernels = await client.call_tool("plan", PARTS | {"fields": ["best.kernels", "launch"]})
            junk = {name: await client.call_tool("plan", asked) for name, asked in JUNK.items()}
            after = await client.call_tool("estimate", PARTS | {"plan": {"tp": 8}})
        for name, answer in answers.items():
            assert not answer.is_error, (name, answer.content)
            assert len(json.dumps(answer.structured_content)) <= 4_000, name
        best = answers["plan"].structured_content["best"]
        assert best["fits"]
        assert best["iteration_time_s"] > 0
        assert "best.kernels" in answers["plan"].structured_content["left_out"]
        assert answers["plan"].structured_content["launch"]["plan"] == {"id": best["id"]}
        assert kernels.structured_content["best"].keys() == {"kernels"}
        assert kernels.structured_content["launch"]["plan"]["kernels"]
        assert answers["emit"].structured_content["left_out"] == ["files"]
        assert answers["why"].structured_content["verdict"] == "slower"
        assert answers["lint"].structured_content["findings"]
        assert wrong.is_error
        assert "/model" in wrong.content[0].text
        assert "llama-3.1-8b" in wrong.content[0].text
        for name, answer in junk.items():
            assert answer.is_error, name
            said = answer.content[0].text
            assert len(said) <= 5_000, name
            assert "Traceback" not in said, name
            assert "root:" not in said, name
        assert after.structured_content == answers["estimate"].structured_content

    anyio.run(ask)
