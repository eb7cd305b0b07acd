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
MOST_CHARACTERS = 60_000  # that an agent may have to read


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
        for name, answer in answers.items():
            assert not answer.is_error, (name, answer.content)
            assert len(json.dumps(answer.structured_content)) < MOST_CHARACTERS, name
        best = answers["plan"].structured_content["best"]
        assert best["fits"]
        assert best["iteration_time_s"] > 0
        assert answers["why"].structured_content["verdict"] == "slower"
        assert wrong.is_error
        assert "/model" in wrong.content[0].text
        assert "llama-3.1-8b" in wrong.content[0].text

    anyio.run(ask)
