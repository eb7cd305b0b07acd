"""Findings as SARIF 2.1.0, which code hosts show beside the lines that they are about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from planner.answers.lint.findings import CODES, Finding
from planner.version import __version__

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"error": "error", "warning": "warning", "hint": "note"}


def sarif(findings: Iterable[Finding]) -> dict[str, Any]:
    """The document of one run."""
    found = list(findings)
    codes = sorted({one.code for one in found})
    rules = [{"id": code, "shortDescription": {"text": CODES[code]}} for code in codes]
    driver = {"name": "parallel-planner", "version": __version__, "rules": rules}
    results = [_result(one, codes.index(one.code)) for one in found]
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _result(finding: Finding, place: int) -> dict[str, Any]:
    region = {"region": {"startLine": finding.line}} if finding.line else {}
    where = {"artifactLocation": {"uri": finding.file}, **region}
    properties = {"gain": finding.gain} if finding.gain is not None else {}
    return {
        "ruleId": finding.code,
        "ruleIndex": place,
        "level": LEVELS[finding.severity],
        "message": {"text": finding.text},
        "locations": [{"physicalLocation": where}] if finding.file else [],
        **({"properties": properties} if properties else {}),
    }
