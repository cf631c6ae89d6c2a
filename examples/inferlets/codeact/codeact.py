import asyncio
import re

from inferlet_sdk import Context, http_get, inferlet, launch

LONGEST = 500
LIMITS = {"cpu_seconds": 1.0, "memory_bytes": 64 << 20, "max_children": 0, "max_pages": 0, "max_embeds": 0}
SECONDS = 60.0


@inferlet
async def main(
    args,
    question: str = "What is the total price of kite, bell and cup?",
    functions: str = "price, weight",
    world: str = "http://127.0.0.1:8099",
    texts: bool = False,
    first: str = "",
    rounds: int = 4,
):
    """Answers by Python that the model writes: a child runs it, and the model sees what it prints (CodeACT).

    `texts`: the functions give numbers as texts. `first`: a program that runs before the model's own.
    """
    names = functions.split(", ")
    listed = "\n".join(f"{name}(x): tells the {name}" for name in names)
    ctx = Context(args.model).fill_chat("system", f"Python:\n{listed}").fill_chat("user", question)
    said = f"<code>{first}</code>" if first else await ctx.generate_until(max_tokens=100)
    if first:
        ctx.fill_chat("assistant", said)
    for _ in range(rounds):
        await args.send(f"{said}\n")
        code = re.fullmatch(r"<code>(.*)</code>", said, re.DOTALL)
        if code is None:
            break
        told = await run(code[1], names, world, texts)
        await args.send(f"{told}\n")
        said = await ctx.fill_chat("tool", told).generate_until(max_tokens=100)
    return said.removeprefix("Answer: ")


async def run(*work) -> str:
    """What a program prints, or why it ended: a child runs it, with limits of its own."""
    child = launch(execute, *work, **LIMITS)
    try:
        async with asyncio.timeout(SECONDS):
            end = await child.join()
    except TimeoutError:
        child.cancel()
        return f"Error: the program was ended, for it had not ended after {SECONDS:g} s"
    return end.result if end.status == "finished" else f"Error: the program was ended: {end.error}"[:LONGEST]


def execute(args, code: str, names: list[str], world: str, texts: bool) -> str:
    """Runs a program whose functions ask the world; gives what it prints, or the last line of its traceback."""
    printed: list[str] = []

    def ask(name: str, x: str) -> str | int:
        response = http_get(f"{world}/tools/{name}", params={"x": x}, timeout=SECONDS).result()
        if not response.ok:
            raise LookupError(response.text())
        return response.text() if texts else int(response.text())

    def show(*values: object) -> None:
        printed.append(" ".join(map(str, values)))

    try:
        exec(code, {"print": show, **{name: lambda x, name=name: ask(name, x) for name in names}})
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"[:LONGEST]
    return "\n".join(printed)[:LONGEST] or "Error: the program printed nothing"
