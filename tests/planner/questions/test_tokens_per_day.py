"""One record is a command, a route, an entry of the OpenAPI document, a method and a tool."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import anyio
import httpx2 as httpx
import pytest

import planner
from planner.client import Client
from planner.questions.examples import examples
from planner.questions.registry import QUESTIONS
from tests.planner.questions import tokens_per_day
from tests.planner.questions.tokens_per_day import DAY_S, RECORD, TokensPerDay

PLANNER = (sys.executable, "-m", tokens_per_day.__name__)
ASKED: dict[str, Any] = examples("estimate")["short"]["value"]
OPTIONS = (
    "--model", "llama-3.1-8b", "--cluster", "2x8xh100-sxm", "--seq-length", "8192",
    "--global-batch-size", "128", "--tp", "2", "--sequence-parallel", "--recompute", "full",
    "--recompute-num-layers", "32",
)  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wanted() -> float:
    return planner.estimate(ASKED).estimate.tokens_per_s * DAY_S


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service that knows the question."""
    folder = tmp_path_factory.mktemp("service")
    server = subprocess.Popen(
        [*PLANNER, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PLANNER_DATA_DIR": str(folder), "PLANNER_WARM_UP": "0"},
    )  # fmt: skip
    assert server.stdout is not None
    yield next(word for word in server.stdout.readline().split() if word.startswith("http"))
    server.terminate()
    server.wait()


def printed(*words: str) -> str:
    return subprocess.run([*PLANNER, *words], capture_output=True, text=True, check=True).stdout


def test_as_a_command(wanted: float, service: str) -> None:
    assert printed("tokens-per-day", *OPTIONS) == f"{wanted:,.0f} tokens per day\n"
    here = printed("tokens-per-day", *OPTIONS, "--json")
    assert json.loads(here) == {"tokens_per_day": pytest.approx(wanted)}
    assert printed("--server", service, "tokens-per-day", *OPTIONS, "--json") == here


def test_over_http_by_the_client(
    wanted: float, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(QUESTIONS, RECORD.name, RECORD)
    answer = Client(service).tokens_per_day(ASKED)
    assert isinstance(answer, TokensPerDay)
    assert answer.tokens_per_day == pytest.approx(wanted)


def test_in_the_description(service: str) -> None:
    document = httpx.get(f"{service}/openapi.json", timeout=300).json()
    entry = document["paths"]["/v1/tokens-per-day"]["post"]
    assert entry["summary"] == "How many tokens the request's plan trains on in a day"
    assert entry["requestBody"]["content"]["application/json"]["examples"] == examples("estimate")
    assert "TokensPerDay" in document["components"]["schemas"]


@pytest.mark.exhaustive
def test_as_a_tool(wanted: float) -> None:
    import mcp
    from mcp.client.stdio import StdioServerParameters, stdio_client

    async def ask() -> Any:
        command = StdioServerParameters(command=PLANNER[0], args=[*PLANNER[1:], "mcp"])
        async with mcp.Client(stdio_client(command)) as client:
            return await client.call_tool("tokens-per-day", ASKED)

    answer = anyio.run(ask)
    assert not answer.is_error, answer.content
    assert answer.structured_content == {"tokens_per_day": pytest.approx(wanted)}
