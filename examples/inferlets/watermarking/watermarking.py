from collections.abc import Sequence
from hashlib import blake2b
from math import exp, log

from inferlet_sdk import Context, DistSampler, inferlet, traits

AT_ONCE, LOOKS_BACK, K, TEMPERATURE, KEPT = 256, 3, 64, 0.7, 0.95


def log_draw(key: str, before: Sequence[int], token: int) -> float:
    """The logarithm of a number between 0 and 1 that the key draws for a token behind others."""
    digest = blake2b(f"{key} {list(before[-LOOKS_BACK:])} {token}".encode(), digest_size=8).digest()
    return log((int.from_bytes(digest) + 0.5) / 2**64)


async def evidence(model: str, key: str, text: str) -> float:
    """The logarithm of how much more probable a text is with the mark than without it. What is repeated, and draws the
    same number again, counts once."""
    queue, total, counted = traits.create_queue(model), 0.0, set[tuple[int, ...]]()
    tokens = traits.tokenize(queue, text)[: traits.get_model_info(model).max_context]
    pages = traits.alloc_kvpage(queue, -(-len(tokens) // traits.get_model_info(model).page_size))
    embeds = traits.alloc_emb(queue, AT_ONCE)
    for start in range(0, len(tokens), AT_ONCE):
        used = embeds[: len(tokens) - start]
        traits.embed_txt(queue, tokens[start : start + len(used)], range(start, start + len(used)), used)
        traits.forward(queue, pages, used, pages, used)
        for place, dist in enumerate(await traits.get_next_dists(queue, used, K, TEMPERATURE), start + 1):
            p = dict(zip(dist.tokens, dist.probabilities, strict=True)).get(tokens[place]) if tokens[place:] else None
            drawn = tuple(tokens[max(place - LOOKS_BACK, 0) : place + 1])
            if p and drawn not in counted:
                counted.add(drawn)
                draw = log_draw(key, tokens[:place], tokens[place])
                total += log(1 - KEPT + KEPT * exp((1 / p - 1) * draw) / p)
    return total


@inferlet
async def main(args, prompt: str = "Once upon a time", key: str = "7", tokens: int = 80, text: str = ""):
    """Writes a text with a mark that only the key shows; with `text=`, tells how surely a text has it."""
    if text:
        return await evidence(args.model, key, text)
    ctx = Context(args.model).fill(prompt)

    def choose(dist):
        likely = zip(dist.probabilities, dist.tokens, strict=True)
        return max((log_draw(key, ctx.tokens, token) / p, token) for p, token in likely)[1]

    await args.stream(ctx.generate(tokens, sampler=DistSampler(choose, K, TEMPERATURE)))
    return None
