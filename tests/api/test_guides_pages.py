"""The guides of docs/ at /docs: the same pages, with links that lead on."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from urllib.parse import urljoin

import pytest
from fastapi.testclient import TestClient

DOCS = Path(__file__).parents[2] / "docs"
NAMES = sorted(file.relative_to(DOCS).with_suffix("").as_posix() for file in DOCS.rglob("*.md"))


def words(text: str) -> list[str]:
    """The words of a text, without markup."""
    return re.findall(r"\w+", text)


@pytest.mark.slow
def test_every_guide_is_served_whole_and_its_links_lead_on(client: TestClient) -> None:
    listed = client.get("/docs/guides").text
    for name in NAMES:
        source = (DOCS / f"{name}.md").read_text(encoding="utf-8")
        response = client.get(f"/docs/{name}")
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/html")
        assert f'href="{name}"' in listed or name == "index"
        body = response.text.partition('<main class="guide">')[2].partition("</main>")[0]
        shown = words(unescape(re.sub(r"<[^>]*>", " ", body)))
        assert (
            len(shown)
            > 0.9 * len(words(re.sub(r"!\[[^\]]*\]\([^)]*\)|\]\([^)]*\)", "", source)))
            > 20
        )
        for target in re.findall(r'href="([^"]+)"', body):
            leads_on = "://" in target or client.get(urljoin(f"/docs/{name}", target))
            assert leads_on is True or leads_on.status_code == 200, target
        for source_of_picture in re.findall(r'src="([^"]+)"', body):
            drawn = client.get(urljoin(f"/docs/{name}", source_of_picture))
            assert drawn.status_code == 200
            assert drawn.headers["content-type"] == "image/svg+xml"
        assert ("<table>" in body) == bool(re.search(r"\n\| ?-", source))


@pytest.mark.parametrize(
    "name", ["none", "..%2f..%2fREADME", "formulas.md", "../README.svg", "pictures/none.svg"]
)
def test_what_is_no_guide_is_not_found(client: TestClient, name: str) -> None:
    response = client.get(f"/docs/{name}")
    assert (response.status_code, response.json()["status"]) == (404, 404)
