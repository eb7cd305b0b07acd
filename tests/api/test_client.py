"""The client: its operations are those of the OpenAPI document, its answers the planner's."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import planner
from api.app import create_app
from api.settings import Settings
from planner.answers.plans.emission import NothingFits
from planner.client import Client
from planner.client.calls import Budget
from planner.client.events import Event, events
from planner.client.operations import operations
from planner.documents.answer import PlanAnswer
from planner.documents.problems import RequestError, ServiceError
from planner.progress import Step, Watch, watched
from planner.running.jobs.settings import JobSettings
from tests.fixtures.job_server import ENDLESS, SWEEP, Place, eventually
from tests.fixtures.service import described, examples, listening

ASKED: dict[str, Any] = {
    "model": "gpt2", "cluster": "1x4xh100-sxm",
    "training": {"seq_length": 1024, "global_batch_size": 64},
}  # fmt: skip
RIGHTS = "/v1/sites/{name}/rights"
PARTS = {"id": "example", "name": "example"}  # of paths


def _name(operation_id: str, path: str, verb: str) -> str:
    ending = re.sub(r"\W", "_", path) + f"_{verb}"
    return operation_id.removesuffix(ending)


def _is_brief(example: Any) -> bool:
    """The first example of an operation; a sizing takes longer."""
    return example.name == "short" and "sizings" not in example.path


EXAMPLES = [
    pytest.param(
        _name(one.operation_id, one.path, one.verb),
        one.path,
        one.verb,
        one.body,
        id=f"{one.path}-{one.name}",
        marks=pytest.mark.slow if _is_brief(one) else pytest.mark.exhaustive,
    )
    for one in examples(described())
    if one.path != RIGHTS  # which need a key: see test_rights
]


@pytest.fixture(scope="module")
def service() -> Iterator[Client]:
    # Jobs are queued but not run.
    with listening(create_app(Settings(jobs=JobSettings(max_runs=0)))) as port:
        yield Client(f"http://127.0.0.1:{port}")


@pytest.mark.slow
def test_operations_are_those_of_the_document() -> None:
    document = {
        (_name(operation["operationId"], path, verb), verb.upper(), path)
        for path, found in described().openapi()["paths"].items()
        for verb, operation in found.items()
    }
    made = {(name, one.verb, one.path) for name, one in operations()}
    assert made == document
    assert len({name for name, *_ in made}) == len(made)  # none hides another


@pytest.mark.slow
def test_the_examples_are_those_of_the_document() -> None:
    document = [
        (operation["operationId"], path, verb, name, example["value"])
        for path, found in described().openapi()["paths"].items()
        for verb, operation in found.items()
        for content in operation.get("requestBody", {"content": {}})["content"].values()
        for name, example in content["examples"].items()
    ]
    assert examples(described()) == document


@pytest.mark.slow
def test_parameters_are_those_of_the_document() -> None:
    """Those of a part of the answer or another form of it aside, which no class is of."""
    paths = described().openapi()["paths"]
    for name, one in operations():
        found = paths[one.path][one.verb.lower()]
        known = {
            parameter["name"].replace("-", "_")
            for parameter in found.get("parameters", ())
            if parameter["in"] != "path"
        }
        assert set(one.takes) <= known, name
        assert known - set(one.takes) <= {"fields", "format", *Budget.__annotations__}, name
        assert one.document == ("requestBody" in found), name


def test_what_no_operation_takes_is_refused(service: Client) -> None:
    with pytest.raises(TypeError, match=r"ranks\(document, order=\.\.\., cpu_s=\.\.\."):
        service.ranks(ASKED, ordre="megatron")
    with pytest.raises(TypeError, match=r"saved_plan\(name\)"):
        service.saved_plan()
    with pytest.raises(AttributeError, match="no operation 'plane'"):
        service.plane(ASKED)
    assert {"plan", "kept_plan", "follow_sweeps", "finished", "ask"} <= set(dir(service))


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize(("name", "path", "verb", "example"), EXAMPLES)
def test_every_example(
    service: Client, client: Any, name: str, path: str, verb: str, example: dict[str, Any]
) -> None:
    """The client's answer, written out, is what the service sent."""
    parts = [PARTS[word] for word in re.findall(r"{(\w+)}", path)]
    answer = getattr(service, name)(*parts, example)
    response = client.request(verb, path.format(**PARTS), json=example)
    assert response.status_code in (200, 201, 202), response.text
    sent = response.json()
    found = json.loads(answer.model_dump_json())
    # What differs from call to call: times, and the text of a script that has a new token.
    own = {"id", "cached", "links", "spent", "created_at", "saved_at", "learned_at", "text"}
    assert _without(found, own) == _without(sent, own)


@pytest.mark.slow
def test_rights() -> None:
    """The example of rights to a site, asked by who has made it."""
    (rights,) = (one.body for one in examples(described()) if one.path == RIGHTS)
    runs, *_ = (one.body for one in examples(described()) if one.path == "/v1/sites/{name}/runs")
    keys = frozenset([f"team:jobs:{hashlib.sha256(b'secret').hexdigest()}"])
    with listening(
        create_app(Settings(api_keys_sha256=keys, jobs=JobSettings(max_runs=0)))
    ) as port:
        service = Client(f"http://127.0.0.1:{port}", "secret")
        service.learn("example", runs | {"keep": True})
        answer = service.share_site("example", rights)
        service.forget_site("example")
    assert answer.model_dump() == {"name": "example", "owner": "team", **rights}


def _without(document: Any, names: set[str]) -> Any:
    if isinstance(document, dict):
        return {
            name: _without(value, names)
            for name, value in document.items()
            if name not in names and not name.endswith("time_s")
        }
    return [_without(one, names) for one in document] if isinstance(document, list) else document


def _document(answer: BaseModel) -> Any:
    return _without(json.loads(answer.model_dump_json()), set())


@pytest.mark.slow
def test_answers_are_those_of_the_planner(service: Client) -> None:
    here, there = planner.plan(ASKED), service.plan(ASKED)
    assert isinstance(here, PlanAnswer)
    assert isinstance(there, PlanAnswer)
    assert _document(there) == _document(here)
    assert service.kept is not None
    assert service.kept.id.startswith("pl_")
    assert service.kept.spent is None
    assert _document(service.kept_plan(service.kept.id)) == _document(here)
    rows = service.plan_candidates(service.kept.id, limit=3).rows
    assert len(rows) == 3
    asked = ASKED | {"plan": {"dp": 4}}
    assert _document(service.estimate(asked)) == _document(planner.estimate(asked))


def test_errors_are_those_of_the_planner(service: Client) -> None:
    for document in ({}, ASKED | {"model": "gpt-7-large"}, ASKED | {"search": {"tp": {"max": -1}}}):
        with pytest.raises(RequestError) as here:
            planner.plan(document)
        with pytest.raises(RequestError) as there:
            service.plan(document)
        assert there.value.problems == here.value.problems
    with pytest.raises(NothingFits) as nothing:
        service.bundle(ASKED | {"model": "llama-3.1-405b"})
    assert nothing.value.problems[0].code == "nothing_fits"
    with pytest.raises(ServiceError, match="refuses: Not found: no answer pl_0 is kept"):
        service.kept_plan("pl_0")


def test_tells_progress(service: Client) -> None:
    seen: list[Step] = []
    asked = ASKED | {"model": "llama-3.1-8b", "cluster": "8x8xh100-sxm"}
    with watched(Watch(seen.append)):
        service.plan(asked)
    assert seen
    assert seen[-1].done <= seen[-1].total


def test_says_what_a_question_used_up(service: Client) -> None:
    asked = ASKED | {"model": "gpt3-175b", "cluster": "64x8xh100-sxm"}
    answer = service.plan(asked, candidates=1000)
    assert isinstance(answer, PlanAnswer)
    assert service.kept is not None
    assert service.kept.spent is not None
    assert service.kept.spent["allowed"] == 1000


def test_jobs_that_wait_can_be_listed_and_deleted(service: Client) -> None:
    job = service.start_sweeps(SWEEP, idempotency_key="once")
    assert service.start_sweeps(SWEEP, idempotency_key="once").id == job.id
    assert job.id in {row.id for row in service.jobs(kind="sweeps", state="queued").rows}
    assert service.log_of_sweeps(job.id) == ""
    with pytest.raises(ServiceError, match="Not in this state"):
        service.delete_sweeps(job.id)
    service.cancel_sweeps(job.id)
    with pytest.raises(ServiceError, match=rf"job {job.id} of .*: The job was cancelled"):
        service.finished(job)
    service.delete_sweeps(job.id)
    with pytest.raises(ServiceError, match="no such job"):
        service.get_sweeps(job.id)


class _Following(Client):
    """Notes behind which event it goes on."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.behind: list[str | None] = []

    def follow_sweeps(self, id: str, *, last_event_id: str | None = None) -> Iterator[Event]:
        self.behind.append(last_event_id)
        events: Iterator[Event] = self.__getattr__("follow_sweeps")(id, last_event_id=last_event_id)
        return events


@pytest.mark.exhaustive
def test_follows_a_job_to_another_server(tmp_path: Path) -> None:
    """The one that is asked ends and starts again at its address while the job runs."""
    (tmp_path / "service").mkdir()
    place = Place(tmp_path / "service", sweep_step_questions=4)
    try:
        first = place.serve()
        url = str(first.http.base_url).rstrip("/")
        service, found = _Following(url), list[Any]()
        few = {**ENDLESS, "axes": {"training.global_batch_size": [4 * n for n in range(1, 17)]}}
        job = service.start_sweeps(few)
        seen: list[Step] = []

        def follow() -> None:
            with watched(Watch(seen.append)):
                found.append(service.finished(job))

        follower = threading.Thread(target=follow)
        follower.start()
        eventually(lambda: seen and seen[-1].done, "progress")
        first.kill()
        place.serve(at=url)
        follower.join(300)
        assert found
        assert found[0].state == "succeeded"
        assert service.behind[0] is None
        assert int(service.behind[-1] or 0) > 1
        assert len(found[0].result["sweep"]["rows"]) == 16
    finally:
        place.clear()


def test_keeps_its_key_to_itself() -> None:
    service = Client("https://planner.example", "secret-key")
    assert "secret" not in repr(service)
    with pytest.raises(RequestError) as refused:
        Client("https://planner.example", "secret\nkey")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("stream", "found"),
    [
        (b"retry: 1000\n\n: still here\n\n", []),
        (b"event: done\ndata: {}\n\n", [Event("done", b"{}")]),
        (b'id: 7\r\nevent: log\r\ndata: {"text": "a: b"}\r\n\r\n',
         [Event("log", b'{"text": "a: b"}', "7")]),
        (b"event: done\ndata: {}", []),  # the connection ended within it
    ],
)  # fmt: skip
def test_reads_events(stream: bytes, found: list[Event]) -> None:
    assert list(events(stream.splitlines(keepends=True))) == found
