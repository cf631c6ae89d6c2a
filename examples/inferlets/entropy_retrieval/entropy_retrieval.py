import sys
from math import log
from urllib.parse import quote

from inferlet_sdk import Context, http_get, inferlet

LONGEST = 12


@inferlet
async def main(
    args, name: str = "Rosa", keys: str = "job, friend", world: str = "http://127.0.0.1:8099", bound: float = 1.5
):
    """Fills in a record of somebody: what the model is sure of it writes by itself, and it looks up the rest."""
    record, looked_up = {}, []
    for key in keys.split(", "):
        value, entropy = await write(args.model, name, key)
        await args.send(f"{key}: {value} (entropy {entropy:.1f})\n")
        if entropy > bound:
            notes = await look_up(world, name, key)
            looked_up.append(key)
            value, _ = await write(args.model, name, key, notes)
            await args.send(f"{notes}So {key}: {value}\n")
        record[key] = value
    return {"record": record, "looked_up": looked_up}


async def write(model: str, name: str, key: str, notes: str = "") -> tuple[str, float]:
    """The value of a key, and the largest entropy of one of its tokens, in nats."""
    ctx = Context(model).fill_chat("user", f"{notes}Describe {name} as JSON with name, {key}.")
    ctx.fill(f'{{"name": "{name}", "{key}": "')
    start, worst = len(ctx.text), 0.0
    for _ in range(LONGEST):
        dist = await ctx.next_dist()
        worst = max(worst, -sum(p * log(p) for p in dist.probabilities if p > 0))
        ctx.fill(dist.tokens[:1])
        if '"' in ctx.text[start:]:
            break
    return ctx.text[start:].split('"')[0], worst


async def look_up(world: str, name: str, key: str) -> str:
    """What the page about somebody says of a key."""
    response = await http_get(f"{world}/pages/{quote(name)}", timeout=10)
    page = await response.text()
    if not response.ok:
        sys.exit(f"{response.url}: {page}")
    return "".join(f"{one.strip('.')}. " for one in page.split(". ") if f" {key} " in one)
