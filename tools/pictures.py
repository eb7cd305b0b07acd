"""The pictures of README.md and docs/, drawn by the product itself.

`python -m tools.pictures schedules` draws pipelines of four stages; a test holds them current.
`python -m tools.pictures page` photographs the page in light and in dark, with Playwright and
Debian's chromium.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

from planner.answers.pipelines.timeline import parse_timeline, timeline
from planner.presentation.drawing.svg import svg

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "zb-v": 2}
ASKED = {
    "model": "llama-3.1-70b",
    "cluster": {"accelerator": "h100-sxm-80gb", "nodes": 8, "accelerators_per_node": 8},
    "training": {"seq_length": 8192, "global_batch_size": 1024, "tokens": 1e12},
}
COLOURS = 96
WIDTH, HEIGHT = 1280, 1062


def schedule(name: str) -> str:
    """The SVG of a schedule: every pass of a stage takes one second, however many its chunks."""
    each = 1.0 / CHUNKS[name]
    document: dict[str, Any] = {
        "schedule": name, "stages": 4, "micro_batches": 8, "chunks": CHUNKS[name],
        "forward_s": each, "input_grad_s": each, "weight_grad_s": each,
    }  # fmt: skip
    return svg(timeline(parse_timeline(document)))


def draw_schedules() -> None:
    """Write docs/pictures/SCHEDULE.svg."""
    for name in CHUNKS:
        (FOLDER / f"{name}.svg").write_text(schedule(name), encoding="utf-8")


def photograph_page() -> None:
    """Write docs/pictures/page-light.png and page-dark.png, of a service of its own."""
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "planner.cli", "serve", "--port", "0"]
    with (
        tempfile.TemporaryDirectory() as data,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | {"PLANNER_DATA_DIR": data},
        ) as service,
    ):  # fmt: skip
        try:
            assert service.stdout is not None
            address = next(
                word for line in service.stdout for word in line.split() if "://" in word
            )
            with sync_playwright() as playwright:
                chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
                browser = playwright.chromium.launch(
                    executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
                )
                for theme in ("light", "dark"):
                    page = browser.new_page(
                        color_scheme=theme, viewport={"width": WIDTH, "height": HEIGHT}
                    )
                    page.goto(f"{address}/{_fragment({'request': ASKED})}")
                    page.get_by_role("heading", name="Fastest plan").wait_for()
                    page.wait_for_load_state("networkidle")
                    _write(FOLDER / f"page-{theme}.png", page.screenshot())
        finally:
            service.terminate()


def _write(path: Path, screenshot: bytes) -> None:
    """A picture in as many colours as the page has, which is a third of the bytes."""
    from PIL import Image

    picture = Image.open(io.BytesIO(screenshot)).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def _fragment(state: dict[str, Any]) -> str:
    """The page's address of a state (web/url.js)."""
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    packed = deflate.compress(json.dumps(state).encode()) + deflate.flush()
    return f"#q={base64.urlsafe_b64encode(packed).decode().rstrip('=')}"


def main() -> None:
    """Draw the pictures that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["schedules", "page"])
    {"schedules": draw_schedules, "page": photograph_page}[parser.parse_args().what]()


if __name__ == "__main__":
    main()
