"""Answers that are kept: ids, entity tags, idempotency keys, and the list of candidates."""

from __future__ import annotations

import base64
import csv
import io
import json
import zlib
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.routes import plans as routes
from cost_models.plans import FIELDS, ParallelPlan
from planner.answers.plans import plan_answers
from planner.evidence.uncertainty.site_storage import room_of
from planner.inputs.requests.parser import parse_request
from planner.questions.examples import examples
from planner.running.store import Unavailable
from planner.running.store.results import Results
from tests.fixtures.service import serving

ASK: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": "1x8xh100-sxm",
    "training": {"seq_length": 4096, "global_batch_size": 64},
}
SMALL_SIZING = examples("sizing")["short"]["value"] | {
    "sizing": {"accelerators": ["h100-sxm"], "sizes": [64]}
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        pytest.param("/v1/plans", ASK, marks=pytest.mark.exhaustive),
        pytest.param("/v1/sizings", SMALL_SIZING, marks=pytest.mark.exhaustive),
        ("/v1/sensitivities", examples("sensitivity")["short"]["value"]),
    ],
)
def test_the_same_question_is_answered_once(
    client: TestClient, path: str, asked: dict[str, Any]
) -> None:
    first = client.post(path, json=asked)
    assert first.status_code == 200, first.text
    again = client.post(path, json=asked).json()
    address = first.headers["location"]
    assert address == f"{path}/{again['id']}" == again["links"]["self"]
    assert again == first.json() | {"cached": True}
    kept = client.get(address)
    assert kept.json() == again
    for call in (
        client.get(address, headers={"if-none-match": kept.headers["etag"]}),
        client.post(path, json=asked, headers={"if-none-match": f'"x", "{again["id"]}"'}),
    ):
        assert (call.status_code, call.content) == (304, b"")
        assert call.headers["etag"] == first.headers["etag"]
    other = client.post(path, json=asked | {"model": "llama-3.2-1b"}).json()["id"]
    assert other != again["id"]
    with serving() as another:  # kept in the data folder
        assert another.get(address).status_code == 200


def test_an_estimate_has_an_entity_tag(client: TestClient) -> None:
    asked = ASK | {"plan": {"tp": 8}}
    tag = client.post("/v1/estimates", json=asked).headers["etag"]
    headers = {"if-none-match": tag}
    assert client.post("/v1/estimates", json=asked, headers=headers).status_code == 304
    other = ASK | {"plan": {"tp": 4}}
    assert client.post("/v1/estimates", json=other, headers=headers).status_code == 200


def test_unknown_ids(client: TestClient) -> None:
    plan = client.post("/v1/plans", json=ASK).json()["id"]
    for path in ("/v1/plans/pl_0", f"/v1/sizings/{plan}", "/v1/plans/pl_0/candidates"):
        response = client.get(path)
        assert response.status_code == 404
        assert response.json()["type"] == "/problems/not-found"
    for junk in ("pl_0'--", "..", "pl_" + "0" * 100, "%00"):
        assert client.get(f"/v1/plans/{junk}").status_code in (404, 405, 422)
    (error,) = client.get("/v1/plans/abc").json()["errors"]
    assert error["detail"] == "is no id of an answer, which looks like pl_7dcd0a1b2c3d4e5f"


def test_an_idempotency_key_stands_for_one_question(client: TestClient) -> None:
    key = {"idempotency-key": "morning"}
    first = client.post("/v1/plans", json=ASK, headers=key)
    assert client.post("/v1/plans", json=ASK, headers=key).json()["id"] == first.json()["id"]
    other = client.post("/v1/plans", json=ASK | {"model": "llama-2-7b"}, headers=key)
    assert other.status_code == 422
    assert other.json()["type"] == "/problems/idempotency-mismatch"
    assert client.post("/v1/plans", json=ASK, headers={"idempotency-key": "x" * 256}).is_error


def test_without_a_store_there_are_answers(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise Unavailable("disk full")

    monkeypatch.setattr(Results, "get", fail)
    monkeypatch.setattr(Results, "put", fail)
    answer = client.post("/v1/plans", json=ASK)
    assert answer.status_code == 200
    assert answer.json()["cached"] is False
    response = client.get(answer.headers["location"])
    assert response.status_code == 503
    assert response.json()["type"] == "/problems/unavailable"
    assert int(response.headers["retry-after"]) > 0


@pytest.mark.slow
def test_candidates_are_all_that_were_priced(client: TestClient) -> None:
    answer = client.post("/v1/plans", json=ASK).json()
    address = answer["links"]["candidates"]
    counts = answer["counts"]
    pages: list[dict[str, Any]] = []
    cursor: str | None = "0"
    while cursor is not None:
        page = client.get(address, params={"limit": 5_000, "cursor": cursor}).json()
        pages += page["rows"]
        cursor = page["next"]
    assert page["total"] == counts["feasible"]
    assert len(pages) == page["listed"] == min(counts["feasible"], 10_000)
    best = {name: pages[0][name] for name in FIELDS}
    assert best == answer["best"]["plan"]
    assert pages[0]["tokens_per_s"] == pytest.approx(answer["best"]["tokens_per_s"])
    speeds = [row["tokens_per_s"] for row in pages]
    assert speeds == sorted(speeds, reverse=True)
    request = parse_request(ASK)
    for row in pages[:: max(1, len(pages) // 7)]:  # each is what an estimate of its plan says
        report = plan_answers.estimate(
            request, ParallelPlan(**{n: row[n] for n in FIELDS})
        ).estimate
        assert report.fits
        assert row["peak_bytes"] == pytest.approx(report.memory.peak_bytes)
        assert row["bubble_s"] == pytest.approx(report.time_parts_s["bubble"])
    missed = client.get(address, params={"status": "memory", "sort": "peak_bytes"}).json()
    assert missed["total"] == counts["costed"] - counts["feasible"]
    peaks = [row["peak_bytes"] for row in missed["rows"]]
    assert peaks == sorted(peaks)
    room = room_of(request)
    for row in missed["rows"][::7]:
        plan = ParallelPlan(**{n: row[n] for n in FIELDS})
        memory = plan_answers.estimate(request, plan).estimate.memory
        assert memory.needed_bytes > room.of_plan(plan)
        assert memory.chance_of_running_out > request.search.memory_risk


def test_candidates_as_a_table(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    address = client.post("/v1/plans", json=ASK).json()["links"]["candidates"]
    rows = client.get(address, params={"limit": 3}).json()["rows"]
    monkeypatch.setattr(
        routes, "dumped_candidates", None
    )  # the order is kept: nobody searches again
    response = client.get(address, params={"limit": 3}, headers={"accept": "text/csv"})
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    table = list(csv.DictReader(io.StringIO(response.text)))
    assert [row["tp"] for row in table] == [str(row["tp"]) for row in rows]
    assert list(table[0]) == list(rows[0])


def test_bad_orders_and_places(client: TestClient) -> None:
    address = client.post("/v1/plans", json=ASK).json()["links"]["candidates"]
    for wrong in ("sort=speed", "limit=0", "limit=x", "cursor=-1", "status=any"):
        response = client.get(f"{address}?{wrong}")
        assert response.status_code == 422
        assert response.json()["errors"][0]["pointer"] == f"/{wrong.split('=')[0]}"
    near = client.get(f"{address}?sort=tokens_per_sec").json()["errors"][0]["did_you_mean"]
    assert "tokens_per_s" in near
    nothing = client.post("/v1/plans", json=ASK | {"search": {"tp": 3}}).json()
    assert nothing["best"] is None
    assert client.get(nothing["links"]["candidates"]).json()["rows"] == []


def test_an_answer_has_a_page(client: TestClient) -> None:
    answer = client.post("/v1/plans", json=ASK).json()
    response = client.get(answer["links"]["web"], follow_redirects=False)
    place = response.headers["location"].removeprefix("/#q=")
    text = zlib.decompress(base64.urlsafe_b64decode(place + "=="), -zlib.MAX_WBITS)
    assert json.loads(text) == {"request": answer["request"]}
