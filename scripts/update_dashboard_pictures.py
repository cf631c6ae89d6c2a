"""Takes the pictures of docs/dashboard.md anew, in a headless Chromium, of a server with a model without weights.

python scripts/update_dashboard_pictures.py
"""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pie_control.client import Client  # noqa: E402
from pie_inference.options import default_cache_dir  # noqa: E402
from testing.browser import Page, chromium, find_chromium  # noqa: E402
from tests.helpers.live_server import live_server  # noqa: E402

WRITER = b"""
import asyncio, random
from inferlet_sdk import Context

async def main(args):
    while True:
        context = Context(args.model)
        context.fill("Once upon a time " * random.randint(1, 8))
        async for _ in context.generate(max_tokens=random.randint(5, 40)):
            await asyncio.sleep(0.05)
        await asyncio.sleep(random.random())
"""

PLAYED = """import asyncio
from inferlet_sdk import Context


async def main(args):
    context = Context(args.model)
    context.fill("Once upon a time")
    async for piece in context.generate(max_tokens=30):
        await args.send(piece)
        await asyncio.sleep(0.02)
    facts = {}
    return facts["none"]
"""


async def write(url: str, seconds: float) -> None:
    """Twelve inferlets that generate."""
    async with Client(url) as client:
        writer = await client.upload(WRITER, "writer")
        for _ in range(12):
            await client.launch(writer)
        await asyncio.sleep(seconds)


def main() -> None:
    path = find_chromium()
    if path is None:
        sys.exit("no Chromium is installed here")
    pictures = ROOT / "docs" / "pictures"
    pictures.mkdir(exist_ok=True)
    with live_server(Path(default_cache_dir())) as url, chromium(path) as page:
        writers = threading.Thread(target=lambda: asyncio.run(write(url, 25)))
        writers.start()
        page.open(f"{url}/", 1280, 800)
        page.until("document.querySelectorAll('.scroll tbody tr').length >= 12")
        page.value("new Promise((done) => setTimeout(done, 11000))")
        page.picture(pictures / "dashboard.png")
        writers.join()
        play(url, page)
        page.picture(pictures / "playground.png")


def play(url: str, page: Page) -> None:
    """A program that ran in the playground, and failed."""
    page.open(f"{url}/playground", 1280, 800)
    page.until("document.querySelectorAll('option').length > 10")
    page.value("document.querySelector('textarea').select()")
    page.type(PLAYED)
    page.value("document.querySelector('button.run').click()")
    page.until("document.querySelector('pre.error') !== null")
    page.until("/sample/.test(document.querySelector('canvas').getAttribute('aria-label'))")
    page.value("document.activeElement.blur()")


if __name__ == "__main__":
    main()
