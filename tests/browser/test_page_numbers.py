"""What is typed as numbers and limits, and how numbers are shown: the page's own functions."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page

THIN = "\u202f"
TYPED: dict[str, Any] = {
    "1024": 1024, " 8k": 8000, "1.5T": 1.5e12, "1e12": 1e12, "1,024": 1024, "1_000": 1000,
    "-2": -2, ".5": 0.5, "10x": "10x", "1.2.3": "1.2.3", "": "", "e5": "e5", "0x10": "0x10",
}  # fmt: skip
LIMITS: dict[str, Any] = {
    "8": 8, "<= 8": {"max": 8}, "≤8": {"max": 8}, "<8": {"max": 7}, "> 2": {"min": 3},
    "2-8": {"min": 2, "max": 8}, "2 – 8": {"min": 2, "max": 8}, "..8": {"max": 8},
    "1, 2,4": [1, 2, 4], "wide": "wide",
}  # fmt: skip
SHOWN: list[tuple[str, list[Any], str]] = [
    ("number", [0], "0"),
    ("number", [60.7803], "60.8"),
    ("number", [999.6], "1,000"),
    ("number", [0.01234], "0.0123"),
    ("number", [None], "–"),
    ("bytes", [85520809984, "GiB"], f"79.6{THIN}GiB"),
    ("bytes", [85520809984, "GB"], f"85.5{THIN}GB"),
    ("bytes", [1, "GiB"], f"< 0.01{THIN}GiB"),
    ("seconds", [0.0123], f"12.3{THIN}ms"),
    ("seconds", [60.8], f"60.8{THIN}s"),
    ("seconds", [7200], f"2{THIN}h"),
    ("secondsRange", [1854, 2262], f"30.9–37.7{THIN}min"),
    ("percent", [0.5247], f"52.5{THIN}%"),
    ("percent", [0.00001], f"< 0.1{THIN}%"),
    ("big", [70_553_706_496], f"70.6{THIN}B"),
    ("big", [27_500], f"27.5{THIN}k"),
    ("money", [759_979], f"$760{THIN}k"),
    ("money", [1_190_000], f"$1.19{THIN}M"),
    ("money", [950], "$950"),
    ("energy", [312_042], f"312{THIN}MWh"),
    ("tokensPerSecond", [138_015], f"138{THIN}k tokens/s"),
    ("value", [[True, 1, "a"]], "yes, 1, a"),
]


def _call(page: Page, module: str, calls: list[tuple[str, list[Any]]]) -> list[Any]:
    """What functions of a module return."""
    found: list[Any] = page.evaluate(
        """async ([module, calls]) => {
            const functions = await import(module);
            return calls.map(([name, given]) => functions[name](...given));
        }""",
        [module, calls],
    )
    return found


def test_numbers_and_limits(page: Page) -> None:
    page.goto("/")
    typed = _call(page, "/web/ui/field.js", [("parseNumber", [text]) for text in TYPED])
    assert dict(zip(TYPED, typed, strict=True)) == TYPED
    limits = _call(page, "/web/form/limits.js", [("parseLimit", [text]) for text in LIMITS])
    assert dict(zip(LIMITS, limits, strict=True)) == LIMITS
    shown = _call(page, "/web/format.js", [(name, given) for name, given, _ in SHOWN])
    assert shown == [text for _, _, text in SHOWN]


def test_a_document_survives_its_address(page: Page) -> None:
    page.goto("/")
    document = {"request": {"model": "ü \u2028 </script>", "n": [1.5, None, {}]}, "view": "size"}
    packed, again = page.evaluate(
        """async (document) => {
            const { pack, unpack } = await import("/web/url.js");
            const packed = await pack(document);
            return [packed, await unpack(packed)];
        }""",
        document,
    )
    assert again == document
    assert packed.startswith("#q=")
    refused = page.evaluate(
        """async () => {
            const { pack, unpack } = await import("/web/url.js");
            const bomb = await pack({ a: "0".repeat(1_000_000) });
            return Promise.all([bomb, "#q=AAAA", "#q="].map((hash) => unpack(hash).catch(() => "refused")));
        }"""  # noqa: E501
    )
    assert refused == ["refused", "refused", None]
