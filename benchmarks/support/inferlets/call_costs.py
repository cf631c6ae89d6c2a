"""Times API calls from inside the sandbox: answers each message [call, layer, how often] with nanoseconds per call.

Layer "control" is the time until the call returns, layer "inference" the time until its effect or value is there.
"""

import json
from collections.abc import Sequence
from time import monotonic_ns

from inferlet_sdk import Args, Embeds, HostFuture, Pages, Slots, gather, inferlet, traits

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
        self.spare = traits.alloc_emb(self.queue, 2)
        self.detokenizer = traits.create_detokenizer(self.queue)
        size = traits.get_model_info(args.model).page_size
        self.slots = Slots([self.pages[0] * size, 1]), Slots([self.pages[3] * size, 1])
        self.made: list[Pages | Embeds] = []  # by one block
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

    def usage(self) -> None:
        traits.usage()

    def detokenize(self) -> None:
        traits.detokenize(self.queue, [100, 101])

    def push_tokens(self) -> None:
        traits.push_tokens(self.detokenizer, [100])

    def set_queue_priority(self) -> None:
        traits.set_queue_priority(self.queue, 0)

    def synchronize(self) -> HostFuture[None]:
        return traits.synchronize(self.queue)

    def alloc_kvpage(self) -> None:
        self.made.append(traits.alloc_kvpage(self.queue))

    def alloc_emb(self) -> None:
        self.made.append(traits.alloc_emb(self.queue))

    def copy_emb(self) -> None:
        traits.copy_emb(self.queue, self.output, self.spare[:1])

    def copy_kvpage(self) -> None:
        traits.copy_kvpage(self.queue, *self.slots)

    def mask_kvpage(self) -> None:
        traits.mask_kvpage(self.queue, self.pages)

    def set_positions(self) -> None:
        traits.set_positions(self.queue, [self.position], self.input)

    def forward_with_dist(self) -> HostFuture[traits.Dist]:
        return traits.forward_with_dist(self.queue, [100], [self.position], self.input, self.pages, (), self.output[0])

    def forward_with_sampling(self) -> HostFuture[int]:
        return traits.forward_with_sampling(
            self.queue, [100], [self.position], self.input, self.pages, (), self.output[0], self.sampler
        )

    def sample_constrained(self) -> HostFuture[int]:
        return traits.sample_constrained(self.queue, self.output[0], self.sampler)

    def sample_with_logprobs(self) -> HostFuture[traits.ScoredToken]:
        return traits.sample_with_logprobs(self.queue, self.output[0], self.sampler, 4)

    def verify(self) -> HostFuture[traits.Verified]:
        return traits.verify(self.queue, self.output, [], self.sampler)

    def get_next_dists(self) -> HostFuture[list[traits.Dist]]:
        return traits.get_next_dists(self.queue, self.output)

    def get_logprobs_at(self) -> HostFuture[list[float]]:
        return traits.get_logprobs_at(self.queue, self.output, [100])

    def get_next_dist(self) -> HostFuture[traits.Dist]:
        return traits.get_next_dist(self.queue, self.output[0])

    def get_logprobs(self) -> HostFuture[list[float]]:
        return traits.get_logprobs(self.queue, self.output[0], [100])

    async def settle(self, results: Sequence[HostFuture[object] | None]) -> None:
        """Waits until all issued calls are done."""
        await gather(*(future for future in results if future is not None))
        for made in self.made:
            (traits.dealloc_kvpage if isinstance(made, Pages) else traits.dealloc_emb)(self.queue, made)
        self.made.clear()
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
