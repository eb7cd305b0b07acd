"""The pictures of README.md and docs/, drawn by the product itself.

`python -m tools.pictures schedules` draws pipelines of four stages, `examples` the answers of
docs/examples; tests hold them current.  `page` photographs the page in light and in dark, and
`recording` films how it is used, with Playwright and Debian's chromium.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.answers.pipelines.timeline import parse_timeline, timeline
from planner.answers.sensitivities.documents import SensitivityAnswer
from planner.answers.sizing.answer import SizingAnswer
from planner.documents.answer import PlanAnswer
from planner.presentation.drawing.plan_figure import plan_figure
from planner.presentation.drawing.sizing_figure import sizing_figure
from planner.presentation.drawing.svg import svg
from planner.presentation.drawing.tornado_svg import tornado_svg

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
EXAMPLES = FOLDER.parent / "examples"
# What is drawn of the answer that an example has last.
DRAWN: dict[type, Callable[[Any], str]] = {
    PlanAnswer: plan_figure, SizingAnswer: sizing_figure, SensitivityAnswer: tornado_svg,
}  # fmt: skip
ILLUSTRATED = ("own_cluster", "h100_or_b200", "budget", "what_matters")
CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "zb-v": 2}
ASKED = {
    "model": "llama-3.1-70b",
    "cluster": {"accelerator": "h100-sxm-80gb", "nodes": 8, "accelerators_per_node": 8},
    "training": {"seq_length": 8192, "global_batch_size": 1024, "tokens": 1e12},
}
COLOURS = 96
WIDTH, HEIGHT = 1280, 1062
SHORT = 800  # px of the recording's height


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


def example(name: str) -> str:
    """The SVG of the last answer of an example."""
    with redirect_stdout(io.StringIO()):
        answer = runpy.run_path(str(EXAMPLES / f"{name}.py"))["answer"]
    return DRAWN[type(answer)](answer)


def draw_examples() -> None:
    """Write docs/examples/EXAMPLE.svg."""
    for name in ILLUSTRATED:
        (EXAMPLES / f"{name}.svg").write_text(example(name), encoding="utf-8")


@contextmanager
def _browser_and_service() -> Iterator[tuple[Browser, str]]:
    """A browser, and the address of a service with a data folder of its own."""
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
                yield (
                    playwright.chromium.launch(
                        executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
                    ),
                    address,
                )
        finally:
            service.terminate()


def photograph_page() -> None:
    """Write docs/pictures/page-light.png and page-dark.png."""
    with _browser_and_service() as (browser, address):
        for theme in ("light", "dark"):
            page = browser.new_page(color_scheme=theme, viewport={"width": WIDTH, "height": HEIGHT})
            page.goto(f"{address}/{_fragment({'request': ASKED})}")
            _settled(page)
            _write(FOLDER / f"page-{theme}.png", page.screenshot())


def record_page() -> None:
    """Write docs/pictures/recording.webp: from another model and cluster to flags, and why."""
    from PIL import Image

    frames: list[tuple[bytes, float]] = []
    with _browser_and_service() as (browser, address):
        page = browser.new_page(viewport={"width": WIDTH, "height": SHORT})

        def show(seconds: float) -> None:
            frames.append((page.screenshot(), seconds))

        page.goto(address)
        _settled(page)
        form = page.get_by_role("form", name="What to plan")
        show(2.0)
        form.get_by_label("Model", exact=True).select_option("llama-3.1-405b")
        _settled(page)
        show(2.0)
        for label, text in (("Nodes", "64"), ("Global batch", "512")):
            field = form.get_by_label(label, exact=True)
            for end in range(1, len(text) + 1):
                field.fill(text[:end])
                show(0.3)
            _settled(page)
            show(1.5)
        tabs = page.get_by_role("tablist").first
        for tab, said in (("Pipeline timeline", "most in flight"), ("Flags", "--micro-batch-size")):
            page.get_by_role("tab", name=tab, exact=True).click()
            page.get_by_role("tabpanel", name=tab).get_by_text(said).first.wait_for()
            tabs.evaluate("tabs => scrollTo(0, scrollY + tabs.getBoundingClientRect().top - 80)")
            page.wait_for_timeout(500)
            show(4.0)
    pictures = [
        Image.open(io.BytesIO(frame))
        .convert("RGB")
        .resize((WIDTH * 3 // 4, SHORT * 3 // 4), Image.Resampling.LANCZOS)
        for frame, _ in frames
    ]
    pictures[0].save(
        FOLDER / "recording.webp", save_all=True, append_images=pictures[1:], loop=0, quality=75,
        method=6, duration=[round(1000 * seconds) for _, seconds in frames],
    )  # fmt: skip


def _settled(page: Page) -> None:
    page.locator(".figures").wait_for()
    page.locator('[aria-label="Answer"][aria-busy="false"]').wait_for()
    page.wait_for_load_state("networkidle")


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
    drawing = {
        "schedules": draw_schedules, "examples": draw_examples, "page": photograph_page,
        "recording": record_page,
    }  # fmt: skip
    parser.add_argument("what", choices=drawing)
    drawing[parser.parse_args().what]()


if __name__ == "__main__":
    main()
