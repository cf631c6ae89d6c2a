import asyncio
import json
import re

from inferlet_sdk import Context, http_get, inferlet, launch

WORLD, LONGEST, SECONDS, ROUNDS = "http://127.0.0.1:8099", 500, 60.0, 5
PYTHON = r"""
code: "<code>print(" (value " - " value | "sum(" value (" > " NUMBER)? " for x in " list ")" | best) ")</code>"
best: ("max(" | "min(") list ", key=" NAME ")"
value: NAME "(" ("x" | TEXT) ")" | "int(" NAME "(" ("x" | TEXT) "))"
list: "[" in0 "]"
"""


@inferlet
async def main(
    args, question: str, functions: str = "price, weight", world: str = WORLD, texts: bool = False, first: str = ""
):
    """Answers by Python that the model writes: a child runs it, and the model sees what it prints (CodeACT).

    `texts`: the functions give numbers as texts. `first`: a program that runs before the model's own.
    """
    names = functions.split(", ")
    listed = "\n".join(f"{name}(x): tells the {name}" for name in names)
    ctx = Context(args.model).fill_chat("system", f"Python:\n{listed}").fill_chat("user", question)
    told, said = "", f"<code>{first}</code>" if first else ""
    for _ in range(ROUNDS):
        ctx = ctx.fill_chat("assistant", said) if said else ctx
        said = said or await ctx.generate_until(grammar=grammar(question, names, told), max_tokens=100)
        await args.send(f"{said}\n")
        if said.startswith("Answer: "):
            return said.removeprefix("Answer: ")
        told, said = await run(said.removeprefix("<code>").removesuffix("</code>"), names, world, texts), ""
        await args.send(f"{told}\n")
        ctx.fill_chat("tool", told)
    return f"no answer after {ROUNDS} programs"


def grammar(question: str, names: list[str], told: str) -> str:
    """A line of Python with the functions that there are, and the words and numbers of the question; or the answer, if
    the last one has printed something."""
    texts = [json.dumps(f'"{word}"') for word in dict.fromkeys(re.findall("[a-z]+", question) or ["nothing"])]
    rules = [f"TEXT: {' | '.join(texts)}", f"NAME: {' | '.join(map(json.dumps, names))}"]
    rules.append(f"NUMBER: {' | '.join(map(json.dumps, re.findall('[0-9]+', question) or '0'))}")
    for place, text in enumerate(texts[:-1]):  # a list has words in their order, and none twice
        rules.append(f'in{place}: {text} (", " in{place + 1})? | in{place + 1}')
    rules.append(f"in{len(texts) - 1}: {texts[-1]}")
    answer = f'| "Answer: " {json.dumps(told)}' if told and not re.match("[A-Za-z]*Error", told) else ""
    return "\n".join([f"start: code {answer}", PYTHON, *rules])


async def run(*work) -> str:
    """What a program prints, or why it ended: a child runs it, with limits of its own."""
    child = launch(execute, *work, cpu_seconds=1.0, memory_bytes=64 << 20, max_children=0, max_pages=0, max_embeds=0)
    try:
        async with asyncio.timeout(SECONDS):
            end = await child.join()
    except TimeoutError:
        child.cancel()
        return f"Error: the program was ended, for it had not ended after {SECONDS:g} s"
    return str(end.result) if end.status == "finished" else f"Error: the program was ended: {end.error}"[:LONGEST]


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
        printed = [f"{type(error).__name__}: {error}"]
    said = "\n".join(printed)[:LONGEST] or "Error: the program printed nothing"
    return said.encode(errors="replace").decode()  # halves of surrogate pairs are no text
