"""Programs that loop, grow or fail, of which the model is told."""

from __future__ import annotations

from examples.checks import Measure, program
from examples.world.serving import Settings, serving
from pie_control.client import Client

PAPER_LINES = 62
LEAST = 1
QUESTION = "What is the total price of kite, bell and cup?"
BAD: dict[str, str | tuple[str, ...]] = {
    "while True: pass": "Error: the program was ended: used more than 1 s of processor time",
    "x = [0]\nwhile True: x += x": ("Error: the program was ended: ", "MemoryError"),
    "def f(): f()\nf()": "RecursionError: maximum recursion depth exceeded",
    "print(1 / 0)": "ZeroDivisionError: division by zero",
    "print(price('nothing'))": "LookupError: no thing is called 'nothing'",
    "from inferlet_sdk import launch\nlaunch(None)": "QuotaExceeded: ",
}
"""Programs, and what the model is told of them."""


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    code = await client.upload(program("codeact"), "")
    told = 0
    async with serving(Settings(seed)) as served:
        for bad, words in [*BAD.items()] * problems:
            running = await client.launch(code, QUESTION, first=bad, world=served.url)
            told += [await running.receive() for _ in range(2)][1].startswith(words)
            await running.terminate()
    return [Measure("loops, bombs and tracebacks of which the model is told", told / problems / len(BAD), at_least=1.0)]
