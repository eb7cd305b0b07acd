"""Names and texts that are markup: every view and tab shows them as text, and runs nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest
from playwright.sync_api import Page, expect

from cost_models.catalog import models
from tests.browser.conftest import Service
from tests.browser.links import SMALL, link

pytestmark = pytest.mark.exhaustive
MARKUP = "<img src=x onerror=window.pwned=1>\"'><script>window.pwned=1</script>${1}{{1}}"
VIEWS = ("plan", "compare", "size", "fit", "rl", "accuracy", "validate", "lint", "saved")
TABS = (
    "Pipeline timeline", "Rank map", "Flags", "Layers", "Sensitivity", "Candidates", "Why not",
)  # fmt: skip
RUN = """window.pwned !== undefined
  || document.querySelector("img[onerror], body script:not([src])") !== null"""


@pytest.fixture
def request_of_markup() -> dict[str, Any]:
    own = models.model("gpt2").model_dump(mode="json", exclude_none=True)
    return SMALL | {"model": own | {"name": MARKUP}}


@pytest.fixture
def saved(service: Service, request_of_markup: dict[str, Any]) -> None:
    base = service.url
    for name in ("saved-plans/%3Cimg%20src=x%20onerror=window.pwned=1%3E", "saved-plans/plain"):
        document = {"request": request_of_markup, "note": MARKUP}
        answer = httpx.put(f"{base}/v1/{name}", json=document)
        assert answer.status_code in (200, 201), answer.text
    log = {"log": MARKUP, "request": request_of_markup, "name": MARKUP}
    answer = httpx.post(f"{base}/v1/sites/{'%3Cscript%3E'}/runs", json=log)
    assert answer.status_code == 422, "a site's name is no markup"


def looked_at(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(500)
    assert not page.evaluate(RUN), address


@pytest.mark.usefixtures("saved")
def test_markup_is_text(open_page: Callable[..., Page], request_of_markup: dict[str, Any]) -> None:
    page = open_page()
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog says {dialog.message}"))
    for view in VIEWS:
        looked_at(page, link(view=view, request=request_of_markup))
        if view == "saved":
            expect(page.locator(".saved-list")).to_contain_text("<script>window.pwned=1</script>")
    looked_at(page, link(view="plan", request=request_of_markup))
    for tab in TABS:
        page.get_by_role("tab", name=tab, exact=True).click()
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(500)
        assert not page.evaluate(RUN), tab
    expect(page.locator("body")).to_contain_text("<img src=x onerror=window.pwned=1>")


SCRIPT = f"""torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 \\
  --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --bf16 \\
  --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 3 \\
  --vocab-size 50304 --data-path '{MARKUP.replace("'", "")}'
"""


@pytest.mark.parametrize(
    "name",
    [MARKUP.replace("/", "") + ".sh", '"><svg onload=window.pwned=1>.sh', "__proto__.sh"],
)
def test_names_of_linted_files_are_text(open_page: Callable[..., Page], name: str) -> None:
    page = open_page()
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog says {dialog.message}"))
    looked_at(page, link(view="lint"))
    given = {"name": name, "mimeType": "text/plain", "buffer": SCRIPT.encode()}
    page.locator('.lint-editor input[type="file"]').set_input_files([given])
    expect(page.get_by_label("Name of this file")).to_have_value(name)
    results = page.locator("#results")
    expect(results).to_contain_text("Will not run", timeout=60_000)
    expect(results.locator(".place").first).to_contain_text(name)
    assert not page.evaluate(RUN)
    page.get_by_label("Text of the file").fill(f"--{MARKUP}")
    expect(results).to_contain_text("This cannot be read", timeout=60_000)
    assert not page.evaluate(RUN)


def test_markup_would_be_noticed(open_page: Callable[..., Page]) -> None:
    page = open_page()
    looked_at(page, link())
    page.evaluate("document.body.appendChild(document.createElement('script'))")
    assert page.evaluate(RUN)


def test_an_address_of_markup_is_no_page(open_page: Callable[..., Page]) -> None:
    page = open_page()
    for state in ({"view": MARKUP}, {"view": "plan", "tab": MARKUP}):
        looked_at(page, link(**state))
    for part in ("problems", "docs", "plans", "web"):
        response = page.request.get(f"/{part}/%3Cscript%3Ewindow.pwned=1%3C/script%3E")
        assert response.status in (404, 422)
        kind = response.headers["content-type"]
        assert kind == "application/problem+json" or "<script>window" not in response.text()
