import asyncio
import json
import re
import sys

from inferlet_sdk import Context, gather, http_get, inferlet

TEXT = "Mia lives in Oslo and has a friend called Leo. Mia works as a baker and likes to climb trees."
TOOLS = {"city": ("population", "city"), "friend": ("home", "person")}
VALUE = re.compile(r'"(\w+)": "([^"]*)"')


@inferlet
async def main(
    args,
    text: str = TEXT,
    keys: str = "name, city, friend, job, hobby",
    world: str = "http://127.0.0.1:8099",
    early: bool = True,
):
    """Reads a record out of a text, and looks up what belongs to its values, each as soon as it is there."""
    properties = {key: {"type": "string", "maxLength": 40} for key in keys.split(", ")}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    ctx = Context(args.model).fill_chat("user", f"{text} Write this as JSON with {keys}.")
    generation, written = ctx.generate(100, schema=schema, run_ahead=False), ""
    calls: dict[str, asyncio.Task[str]] = {}
    begun: dict[str, int] = {}
    async for piece in generation:
        written += piece
        if early:
            begin(world, written, calls, begun, len(generation.tokens))
    if generation.stop_reason == "length":
        sys.exit("the record has more than 100 tokens: ask for fewer keys")
    begin(world, written, calls, begun, len(generation.tokens))
    found = dict(zip(calls, await gather(*calls.values()), strict=True))
    for key, result in found.items():
        await args.send(f"{TOOLS[key][0]}, begun at token {begun[key]} of {len(generation.tokens)}: {result}\n")
    return {"record": json.loads(written), "found": found, "begun": begun, "tokens": len(generation.tokens)}


def begin(world: str, written: str, calls: dict[str, asyncio.Task[str]], begun: dict[str, int], tokens: int) -> None:
    """Begins the calls whose arguments are complete in what is written so far."""
    for key, value in VALUE.findall(written):
        if key in TOOLS and key not in calls:
            calls[key], begun[key] = asyncio.create_task(ask(world, *TOOLS[key], value)), tokens


async def ask(world: str, tool: str, parameter: str, value: str) -> str:
    """What a tool says; a call that fails says why."""
    response = await http_get(f"{world}/tools/{tool}", params={parameter: value}, timeout=10)
    said: str = await response.text()
    return said
