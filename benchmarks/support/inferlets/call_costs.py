"""Times API calls from inside the sandbox: answers each message [call, layer, how often] with nanoseconds per call.

Layer "control" is the time until the call returns, layer "inference" the time until its effect or value is there.
"""

import json
from collections.abc import Sequence
from time import monotonic_ns

from inferlet_sdk import Args, HostFuture, gather, inferlet, traits

TEXT = "The old clock in the hall struck nine."


class Calls:
    """Each method makes a call; calls with a value return its future."""

    def __init__(self, args: Args) -> None:
        self._args = args
        self.queue = traits.create_queue(args.model)
        self.sampler = traits.create_sampler(temperature=0.0)
        tokens = traits.tokenize(self.queue, TEXT)
        self.input, self.output = traits.alloc_emb(self.queue), traits.alloc_emb(self.queue)
        self.pages = traits.alloc_kvpage(self.queue, 4)
        inputs = traits.alloc_emb(self.queue, len(tokens))
        self.position = len(tokens)
        traits.embed_txt(self.queue, tokens, range(len(tokens)), inputs)
        traits.forward(self.queue, self.pages, inputs, self.pages, self.output)
        self.embed_txt()
        self.done = traits.sleep(0)

    def send(self) -> None:
        self._args.send("")

    def now(self) -> None:
        traits.now()

    def clock(self) -> None:
        monotonic_ns()

    def tokenize(self) -> None:
        traits.tokenize(self.queue, TEXT)

    async def wait(self) -> None:
        await traits.wait([self.done])

    def embed_txt(self) -> None:
        traits.embed_txt(self.queue, [100], [self.position], self.input)

    def forward(self) -> None:
        traits.forward(self.queue, self.pages, self.input, (), self.output)

    def sample(self) -> HostFuture[int]:
        return traits.sample(self.queue, self.output[0], self.sampler)

    def get_next_dist(self) -> HostFuture[traits.Dist]:
        return traits.get_next_dist(self.queue, self.output[0])

    def get_logprobs(self) -> HostFuture[list[float]]:
        return traits.get_logprobs(self.queue, self.output[0], [100])

    async def settle(self, results: Sequence[HostFuture[object] | None]) -> None:
        """Waits until all issued calls are done."""
        await gather(*(future for future in results if future is not None))
        await traits.synchronize(self.queue)


async def until_return(calls: Calls, name: str, count: int) -> float:
    call = getattr(calls, name)
    start = monotonic_ns()
    results = [call() for _ in range(count)]
    elapsed = monotonic_ns() - start
    await calls.settle(results)
    return elapsed / count


async def until_wait_returns(calls: Calls, count: int) -> float:
    await calls.done
    start = monotonic_ns()
    for _ in range(count):
        await calls.wait()
    return (monotonic_ns() - start) / count


async def until_done(calls: Calls, name: str, count: int) -> float:
    call = getattr(calls, name)
    start = monotonic_ns()
    for _ in range(count):
        await (call() or traits.synchronize(calls.queue))
    return (monotonic_ns() - start) / count


async def measure(calls: Calls, name: str, layer: str, count: int) -> float:
    if layer == "inference":
        return await until_done(calls, name, count)
    if name == "wait":
        return await until_wait_returns(calls, count)
    return await until_return(calls, name, count)


@inferlet
async def main(args: Args) -> None:
    calls = Calls(args)
    await traits.synchronize(calls.queue)
    args.send("here")
    while True:
        order = await args.receive()
        args.send(str(await measure(calls, *json.loads(order))))
