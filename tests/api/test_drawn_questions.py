"""Questions that are drawn anew each time: large ones end within their budget, junk is refused.

The seed is printed; PLANNER_TEST_SEED=N draws the same again.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from typing import Any

import httpx2 as httpx
import pytest

from api.budget import own_cpu_s, own_memory_bytes
from cost_models.catalog import models
from tests.fixtures.job_server import Place, Server

SEED = int(os.environ.get("PLANNER_TEST_SEED", random.SystemRandom().randrange(10**9)))
CPU_S, MEMORY_MIB = 4.0, 1024
OVER_S = 2.0  # that a question may go over its budget
# A process may take more between two looks at it, of which there are five a second.
OVER_MIB = 512
QUESTIONS = (
    "plans", "sizings", "sensitivities", "rl", "explanations", "timelines", "schedule-comparisons",
    "bundles", "ranks", "layers", "estimates",
)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("drawn") / "data"
    folder.mkdir()
    place = Place(folder, max_runs=0, max_concurrency=2)
    yield place
    place.clear()


@pytest.fixture(scope="module")
def server(place: Place) -> Server:
    return place.serve()


def model(draw: random.Random) -> dict[str, Any]:
    """A model of up to 8,192 layers, some of experts."""
    name = draw.choice(("llama-3.1-8b", "llama-3.1-405b", "mixtral-8x7b", "deepseek-v3"))
    own = models.model(name).model_dump(mode="json", exclude_none=True)
    if draw.random() < 0.7 and name != "deepseek-v3":  # whose layers are listed one by one
        own["num_layers"] = draw.choice((1_024, 4_096, 8_192))
    return own | {"name": "drawn"}


def explosive(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """A path, and a question there that costs more than most."""
    accelerator = draw.choice(("h100-sxm", "a100-sxm-80gb", "b200-sxm", "mi300x"))
    own = model(draw)
    schedule = draw.choice(("1f1b", "gpipe", "zb-h1", "hanayo", "interleaved-1f1b"))
    tp = draw.choice((1, 2, 8))
    plan = {
        "tp": tp, "sequence_parallel": tp > 1, "schedule": schedule,
        "pp": draw.choice((8, 64)) if own["num_layers"] % 64 == 0 else 1,
        "vpp": 2 if schedule in ("hanayo", "interleaved-1f1b") else 1,
    }  # fmt: skip
    search: dict[str, Any] = {"top_k": draw.choice((1, 10, 1000))}
    if draw.random() < 0.5:
        search["open"] = ["rank_order", "recompute_layers", "offload_optimizer"]
    if draw.random() < 0.3:
        search["schedule"] = ["1f1b", "interleaved-1f1b", "zb-v", "hanayo", "dualpipe-v"]
    document = {
        "model": own,
        "cluster": f"{draw.choice((8, 64, 512, 2048))}x8x{accelerator}",
        "training": {
            "seq_length": draw.choice((2_048, 131_072, 1_048_576)),
            "global_batch_size": draw.choice((16_384, 65_536, 1_048_576)),
        },
        "search": search,
    }
    path = draw.choice(QUESTIONS)
    if path == "sizings":
        del document["cluster"]
        document["training"]["tokens"] = 1e13
    elif path == "rl":
        document["training"] = {}
        document["reinforcement"] = {
            "prompts": 4_096, "samples": 16, "prompt_tokens": 2_048, "response_tokens": 30_720,
            "generation_tokens_per_s": 2_500,
        }  # fmt: skip
    elif path not in ("plans", "sensitivities", "bundles"):
        document["plan"] = plan
    if path == "bundles":
        search["framework"] = draw.choice(("megatron", "deepspeed", "torchtitan"))
    return path, document


class Watcher(threading.Thread):
    """Notes seconds of a core that all processes of a place use, and the memory of the largest."""

    def __init__(self, place: Place) -> None:
        super().__init__(daemon=True)
        self._place, self._over = place, threading.Event()
        self._before = {pid: own_cpu_s(pid) for pid in place.processes()}
        self._after: dict[int, float] = defaultdict(float)
        self.memory_mib = 0.0

    def run(self) -> None:
        while not self._over.wait(0.02):
            self.look()

    def look(self) -> None:
        """Note what each process has used; one that is gone keeps what was seen last."""
        for pid in self._place.processes():
            with suppress(OSError):  # it has ended
                self._after[pid] = own_cpu_s(pid)
                self.memory_mib = max(self.memory_mib, own_memory_bytes(pid) / 2**20)

    def cpu_s(self) -> float:
        """Stop, and say how much was used since the start."""
        self._over.set()
        self.join()
        self.look()
        return sum(after - self._before.get(pid, 0.0) for pid, after in self._after.items())


EXPLOSIVE_QUESTIONS = 40


@pytest.mark.exhaustive
def test_explosive_questions_end_within_their_budget(place: Place, server: Server) -> None:
    draw = random.Random(SEED)
    print(f"PLANNER_TEST_SEED={SEED}")
    costly = 0
    for number in range(EXPLOSIVE_QUESTIONS):
        path, document = explosive(draw)
        watcher = Watcher(place)
        watcher.start()
        query = {"cpu_s": CPU_S, "memory_mib": MEMORY_MIB}
        answer = server.http.post(f"/v1/{path}", params=query, json=document)
        cpu_s = watcher.cpu_s()
        told = f"{number} of seed {SEED}: {path} {json.dumps(document)} {answer.text[:500]}"
        kind = answer.json().get("type", "answered")
        print(number, path, kind, f"{cpu_s:.2f} s", f"{watcher.memory_mib:.0f} MiB")
        costly += cpu_s > 0.5
        assert answer.status_code in (200, 422), told
        assert cpu_s < CPU_S + OVER_S, told
        assert watcher.memory_mib < MEMORY_MIB + OVER_MIB, told
    assert costly >= EXPLOSIVE_QUESTIONS // 8, "what is drawn shall be hard"
    small = {"model": "gpt2", "cluster": "1x4xh100-sxm", "plan": {"tp": 1}}
    small["training"] = {"seq_length": 1024, "global_batch_size": 64}
    assert server.http.post("/v1/estimates", json=small).status_code == 200


JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, -1e-308, 10**30, "", "x" * 5_000, "\x00", "\ud800",
    "../../etc/passwd", "8x8xh100-sxm", [], {}, [[]], {"": None}, [1] * 300, math.nan, math.inf,
)  # fmt: skip


def examples(openapi: dict[str, Any]) -> list[tuple[str, str, Any, set[int]]]:
    """Of every body that the service takes: method, path, the body, and the documented statuses."""
    return [
        (method.upper(), path, example["value"], set(map(int, operation["responses"])))
        for path, operations in openapi["paths"].items()
        if "{" not in path
        for method, operation in operations.items()
        for content in operation.get("requestBody", {"content": {}})["content"].values()
        for example in content["examples"].values()
    ]


def parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every list and object in a document, with each of its keys."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from parts(value[key])


def changed(draw: random.Random, document: Any) -> Any:
    """The document with one to three parts lost, replaced, added or put elsewhere."""
    document = json.loads(json.dumps(document))
    for _ in range(draw.randint(1, 3)):
        places = list(parts(document))
        if not places:
            return deepcopy(draw.choice(JUNK))
        (inside, key), (_, other) = draw.choice(places), draw.choice(places)
        change = draw.randrange(5)
        if change == 0:
            del inside[key]
        elif change == 1:
            inside[key] = deepcopy(draw.choice(JUNK))
        elif change == 2 and isinstance(inside, dict):
            inside[str(other) + draw.choice(("", "s", "_"))] = inside.pop(key)
        elif change == 3 and isinstance(inside[key], int | float):
            inside[key] = -inside[key] * draw.choice((1, 0.5, 1_000, 10**9))
        else:
            inside[key] = [inside[key]]
    return document


def broken(draw: random.Random, body: bytes) -> bytes:
    """The body with bytes lost, doubled or replaced."""
    at = draw.randrange(len(body) + 1)
    many = draw.randint(1, 20)
    return draw.choice(
        (
            body[:at],
            body[:at] + body[at + many :],
            body[:at] + body[at : at + many] + body[at:],
            body[:at] + draw.randbytes(many) + body[at:],
            body[:at] + draw.choice((b"[" * 2_000, b'{"a":' * 40, b"9" * 5_000)) + body[at:],
        )
    )


def fuzzed(draw: random.Random, document: Any) -> bytes:
    """A body near to a good one."""
    body = json.dumps(changed(draw, document)).encode()
    return broken(draw, body) if draw.random() < 0.2 else body


def refuse_nan(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(30, marks=pytest.mark.slow),
        pytest.param(20_000, marks=pytest.mark.exhaustive),
    ],
)
def test_fuzzed_bodies_get_documented_answers(server: Server, count: int) -> None:
    print(f"PLANNER_TEST_SEED={SEED}")
    draw = random.Random(SEED)
    good = examples(server.http.get("/openapi.json").json())
    statuses: Counter[int] = Counter()

    async def ask(client: httpx.AsyncClient, left: Iterator[int]) -> None:
        for number in left:
            method, path, document, documented = draw.choice(good)
            # Every tenth stays as it is, so that answers are looked at too.
            body = fuzzed(draw, document) if number % 10 else json.dumps(document).encode()
            bound = {"cpu_s": "0.5"} if method == "POST" else {}
            answer = await client.request(
                method, path, params=bound, content=body,
                headers={"content-type": "application/json"},
            )  # fmt: skip
            told = f"{number} of seed {SEED}: {method} {path} {body[:2_000]!r} {answer.text[:500]}"
            statuses[answer.status_code] += 1
            assert answer.status_code in documented, told
            assert answer.status_code < 500 or "retry-after" in answer.headers, told
            assert "Traceback" not in answer.text, told
            if "json" in answer.headers.get("content-type", ""):
                json.loads(answer.content, parse_constant=refuse_nan)

    async def all_of_them() -> None:
        left = iter(range(count))
        base = str(server.http.base_url)
        async with (
            httpx.AsyncClient(base_url=base, timeout=120) as client,
            asyncio.TaskGroup() as tasks,
        ):
            for _ in range(8):
                tasks.create_task(ask(client, left))

    asyncio.run(all_of_them())
    print(dict(statuses))
    assert statuses[200], statuses
    assert statuses[422] > statuses[503], statuses
