"""The page as the service sends it: whole, small, kept, and nothing of another origin."""

from __future__ import annotations

import gzip
import hashlib
import re

import pytest
from fastapi.testclient import TestClient

from api.web_files import MEDIA_TYPES, WEB, content_security_policy

FILES = sorted(file for file in WEB.rglob("*") if file.is_file())
OWN = [file for file in FILES if WEB / "lib" not in file.parents]
AFTER_FIRST_PAINT = ("d3-", "plot-")
_VENDORED = re.compile(r"^\| (\S+) \| .+ \| \S+ \| `([0-9a-f]{64})` \|$", re.MULTILINE)
_NAMESPACE = "http://www.w3.org/"  # of SVG: a name, which nobody fetches


def test_vendored_files_are_what_the_table_says() -> None:
    lib = WEB / "lib"
    listed = dict(_VENDORED.findall((lib / "VENDORED.md").read_text()))
    found = {
        file.relative_to(lib).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in lib.rglob("*")
        if file.is_file() and file.suffix in (".js", ".mjs", ".css")
    }
    assert listed == found
    for name in listed:
        assert (lib / name).parent.joinpath("LICENSE").is_file()


@pytest.mark.parametrize("file", OWN, ids=lambda file: file.relative_to(WEB).as_posix())
def test_no_other_origin_is_named(file) -> None:
    text = file.read_text(encoding="utf-8").replace(_NAMESPACE, "")
    assert re.findall(r"(?:https?|wss?)://|[\"'(]//", text) == []


@pytest.mark.slow
def test_every_file_is_sent(client: TestClient) -> None:
    for file in FILES:
        answer = client.get(f"/web/{file.relative_to(WEB).as_posix()}")
        assert answer.status_code == 200, file
        assert answer.content == file.read_bytes()
        assert answer.headers["content-type"] == MEDIA_TYPES[file.suffix]


def test_first_load_is_small() -> None:
    first = [
        file
        for file in FILES
        if not any(part.startswith(AFTER_FIRST_PAINT) for part in file.parts)
        and file.suffix in (".html", ".css", ".js", ".mjs", ".svg")
    ]
    assert sum(len(gzip.compress(file.read_bytes(), 9)) for file in first) <= 250 * 1024


def test_the_document_asks_for_all_first_modules_at_once() -> None:
    """What the start and the first view import, so that no module waits for another's text."""
    wanted, left = set(), [WEB / "app.js", WEB / "views" / "plan.js"]
    while left:
        module = left.pop().resolve()
        if module not in wanted:
            wanted.add(module)
            names = re.findall(r'^(?:import|export) [^;]*?"(\.[^"]+)";', module.read_text(), re.M)
            left += [module.parent / name for name in names]
    document = (WEB / "index.html").read_text()
    listed = re.findall(r'rel="modulepreload" href="web/([^"]+)"', document)
    mapped = re.findall(r'": "\./web/([^"]+)"', document)
    assert sorted(listed) == sorted(
        [file.relative_to(WEB.resolve()).as_posix() for file in wanted] + mapped
    )


def test_caching_and_compression(client: TestClient) -> None:
    own = client.get("/web/app.js", headers={"Accept-Encoding": "gzip"})
    assert own.headers["content-encoding"] == "gzip"
    assert own.headers["cache-control"] == "no-cache"
    assert own.headers["vary"] == "Accept-Encoding"
    again = client.get("/web/app.js", headers={"If-None-Match": own.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    plain = client.get("/web/app.js", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    kept = client.get("/web/lib/preact-11.2.0/preact.mjs")
    assert "immutable" in kept.headers["cache-control"]


@pytest.mark.parametrize(
    "path", ["missing.js", "../api/app.py", "%2e%2e/api/app.py", "..%2fapi%2fapp.py", "lib", ""]
)
def test_only_files_of_the_page_are_sent(client: TestClient, path: str) -> None:
    answer = client.get(f"/web/{path}")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


def test_the_policy_lets_only_the_import_map_stand_in_the_document(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-security-policy"] == content_security_policy()
    assert "unsafe" not in content_security_policy()
    inline = re.findall(r"<script(?![^>]*src)[^>]*>", page.text)
    assert inline == ['<script type="importmap">']
    assert re.findall(r"<style|\sstyle=|\son\w+=", page.text) == []
