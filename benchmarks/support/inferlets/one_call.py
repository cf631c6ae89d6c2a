"""Makes one call of the inference layer after the other, and tells how long each took until its value was there.

Each message is a JSON list, [call, count]; the answer is a list of nanoseconds.
"""

import json
from collections.abc import Awaitable, Callable
from time import monotonic_ns
from typing import Any

from inferlet_sdk import Args, inferlet, traits

TEXT = "The old clock in the hall struck nine."


@inferlet
async def main(args: Args) -> None:
    queue = traits.create_queue(args.model)
    sampler = traits.create_sampler(temperature=0.0)
    tokens = traits.tokenize(queue, TEXT)
    inputs, output = traits.alloc_emb(queue, len(tokens)), traits.alloc_emb(queue)
    size = traits.get_model_info(args.model).page_size
    pages = traits.alloc_kvpage(queue, len(tokens) // size + 1)
    traits.embed_txt(queue, tokens, range(len(tokens)), inputs)
    traits.forward(queue, pages, inputs, pages, output)
    await traits.synchronize(queue)
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "sample": lambda: traits.sample(queue, output, sampler),
        "get_next_dist": lambda: traits.get_next_dist(queue, output),
        "synchronize": lambda: traits.synchronize(queue),
    }
    await args.send("here")
    while True:
        name, count = json.loads(await args.receive())
        call, times = calls[name], []
        for _ in range(count):
            begun = monotonic_ns()
            await call()
            times.append(monotonic_ns() - begun)
        await args.send(json.dumps(times))
