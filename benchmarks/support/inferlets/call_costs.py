"""Times API calls from inside the sandbox: answers each message [call, layer, how often] with nanoseconds per call.

Layer "control" is processor time until the call returns: in all, and of it the guest's own. Layer "inference" is time
until its effect or value is there.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle, pairwise
from time import monotonic_ns
from types import FunctionType, SimpleNamespace
from typing import Any

from inferlet_sdk import Args, HostFuture, Slots, bindings, inferlet, traits
from inferlet_sdk.errors import Busy

TEXT = "The old clock in the hall struck nine."
CHAT = [{"role": "user", "content": TEXT}]
GRAMMAR = "regex", "(.|\n)*"
UNDOES = {
    "dealloc": "alloc", "drop": "create_sampler", "cancel": "sleep", "unexport_kvpage": "export_kvpage",
    "grammar_rollback": "advance_matcher",
}  # fmt: skip
"""What gives back what another call has made. Its value is made before it is timed, and given back after the other."""
NEEDS = {"read_body": "http_request"}
"""What takes the value of another call, and gives nothing back."""
ENDLESS = ("sleep", "receive", "join")
"""Futures that nothing here fulfils: they are cancelled."""


class World:
    """What the calls are made with."""

    def __init__(self, args: Args) -> None:
        self.args, self.name = args, args.environment["inferlet"]
        self.queue = traits.create_queue(args.model)
        self.sampler = traits.create_sampler(temperature=0.0)
        self.tokens = traits.tokenize(self.queue, TEXT)
        self.position = len(self.tokens)
        self.input, self.output = traits.alloc_emb(self.queue), traits.alloc_emb(self.queue)
        self.spare = traits.alloc_emb(self.queue, 2)
        self.inputs = traits.alloc_emb(self.queue, self.position)
        size = traits.get_model_info(args.model).page_size
        self.pages = traits.alloc_kvpage(self.queue, 4)
        self.shared = traits.alloc_kvpage(self.queue, -(-self.position // size))
        self.full, self.text = traits.alloc_kvpage(self.queue, 1), (self.tokens * size)[:size]
        inputs = traits.alloc_emb(self.queue, size)
        traits.embed_txt(self.queue, self.text, range(size), inputs)
        traits.forward(self.queue, [], inputs, self.full)
        self.exported: list[str] = []
        for pages in (self.pages, self.shared):
            traits.embed_txt(self.queue, self.tokens, range(self.position), self.inputs)
            traits.forward(self.queue, pages, self.inputs, pages, self.output)
        traits.embed_txt(self.queue, [100], [self.position], self.input)
        self.slots = Slots([self.pages[0] * size, 1]), Slots([self.pages[3] * size, 1])
        self.hidden = cycle(([0], [1]))  # slots
        self.detokenizer = traits.create_detokenizer(self.queue)
        self.blob = traits.open_blob("blob")
        self.subscription = traits.subscribe(self.name)
        self.child = traits.launch(None, "child")
        self.done = traits.sleep(0)

    async def begin(self) -> None:
        await traits.export_kvpage(self.queue, self.name, self.shared)
        await traits.export_prefix(self.queue, self.full, self.text)
        self.matcher = (await traits.open_matcher(self.queue, *GRAMMAR)).matcher
        await traits.synchronize(self.queue)
        await self.done

    def forwarded(self) -> tuple[Any, Any, Any, Any, Any]:
        """Queue, context, inputs, pages for none, outputs."""
        return self.queue, self.pages, self.input, (), self.output

    def export(self) -> HostFuture[None]:
        self.exported.append(f"{self.name} {len(self.exported)}")
        return traits.export_kvpage(self.queue, self.exported[-1], self.shared)


def core_calls(world: World) -> dict[str, Callable[..., Any]]:
    """What no model answers."""
    model, queue, blob, child = world.args.model, world.queue, world.blob, world.child
    url = world.args.argv[0]
    return {
        "get_arg": traits.get_arg, "get_env": traits.get_env, "clock": monotonic_ns,
        "send": lambda: traits.send(""), "receive": traits.receive, "set_result": lambda: traits.set_result("nine"),
        "log": lambda: traits.log("nine"), "sleep": lambda: traits.sleep(1000.0), "cancel": traits.cancel,
        "wait": lambda: traits.wait([world.done]),
        "available_models": traits.available_models,
        "get_model_info": lambda: traits.get_model_info(model), "usage": traits.usage,
        "create_queue": lambda: traits.create_queue(model),
        "synchronize": lambda: traits.synchronize(queue),
        "set_queue_priority": lambda: traits.set_queue_priority(queue, 0),
        "tokenize": lambda: traits.tokenize(queue, TEXT), "detokenize": lambda: traits.detokenize(queue, [100, 101]),
        "create_detokenizer": lambda: traits.create_detokenizer(queue),
        "push_tokens": lambda: traits.push_tokens(world.detokenizer, [100]),
        "get_vocabs": lambda: traits.get_vocabs(queue),
        "format_chat": lambda: traits.format_chat(queue, CHAT),
        "tokenize_chat": lambda: traits.tokenize_chat(queue, CHAT),
        "blob_names": traits.blob_names, "open_blob": lambda: traits.open_blob("blob"),
        "read_blob": lambda: traits.read_blob(blob, 0, 1000),
        "broadcast": lambda: traits.broadcast(world.name, "nine"), "subscribe": lambda: traits.subscribe(world.name),
        "join": lambda: traits.join(child),
        "http_request": lambda: traits.http_request("GET", url),
        "read_body": lambda response: traits.read_body(response._body),
    }  # fmt: skip


def model_calls(world: World) -> dict[str, Callable[..., Any]]:
    """What a model answers."""
    queue, output, sampler, matcher = world.queue, world.output, world.sampler, world.matcher
    return {
        "alloc": lambda: traits.alloc_kvpage(queue),
        "dealloc": lambda made: traits.dealloc_kvpage(queue, made),
        "copy_kvpage": lambda: traits.copy_kvpage(queue, *world.slots),
        "copy_emb": lambda: traits.copy_emb(queue, output, world.spare[:1]),
        "trim_kvpage": lambda: traits.trim_kvpage(queue, world.pages, world.position),
        "mask_kvpage": lambda: traits.mask_kvpage(queue, world.pages, next(world.hidden)),
        "shift_kvpage": lambda: traits.shift_kvpage(queue, world.pages, 1),
        "set_positions": lambda: traits.set_positions(queue, [world.position], world.input),
        "embed_txt": lambda: traits.embed_txt(queue, [100], [world.position], world.input),
        "forward": lambda: traits.forward(*world.forwarded()),
        "create_sampler": lambda: traits.create_sampler(temperature=0.0), "drop": traits.drop,
        "sample": lambda: traits.sample(queue, output[0], sampler),
        "verify": lambda: traits.verify(queue, output, [], sampler),
        "get_next_dist": lambda: traits.get_next_dist(queue, output[0]),
        "get_logprobs": lambda: traits.get_logprobs(queue, output[0], [100]),
        "get_embedding": lambda: traits.get_embedding(queue, output),
        "fork_matcher": lambda: traits.fork_matcher(matcher),
        "grammar_mask": lambda: traits.grammar_mask(matcher),
        "grammar_rollback": lambda advanced: traits.grammar_rollback(matcher, advanced.accepted),
        "grammar_forced": lambda: traits.grammar_forced(matcher),
        "grammar_state": lambda: traits.grammar_state(matcher),
        "open_matcher": lambda: traits.open_matcher(queue, *GRAMMAR),
        "advance_matcher": lambda: traits.advance_matcher(matcher, world.detokenizer, world.tokens[:1], 1, 8),
        "export_kvpage": world.export,
        "import_kvpage": lambda: traits.import_kvpage(queue, world.name),
        "export_prefix": lambda: traits.export_prefix(queue, world.full, world.text),
        "import_prefix": lambda: traits.import_prefix(queue, world.text),
        "unexport_kvpage": lambda _: traits.unexport_kvpage(queue, world.exported.pop()),
        "list_exports": lambda: traits.list_exports(queue, world.name),
    }  # fmt: skip


def used(usage: Callable[[], str]) -> int:
    """Nanoseconds of processor time of this inferlet: unlike a clock, it stands still while others have their turns."""
    return int(json.loads(usage())["cpu_nanoseconds"])


class Played:
    """The host's functions while a block is recorded, and then in its place: what each has returned, once more."""

    def __init__(self) -> None:
        self._host = {name: getattr(bindings, name) for name in bindings.INTERFACES}
        self._returned: dict[tuple[str, str], list[Any]] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        with self._in_place(self._recorder):
            yield

    @contextmanager
    def playing(self) -> Iterator[None]:
        with self._in_place(self._player):
            yield

    @contextmanager
    def _in_place(self, way: Callable[[str, str], Any]) -> Iterator[None]:
        stand_ins = {
            interface: SimpleNamespace(
                **{
                    name: way(interface, name) if isinstance(one, FunctionType) else one
                    for name, one in vars(host).items()
                }
            )
            for interface, host in self._host.items()
        }
        bindings.install(SimpleNamespace(**stand_ins), bindings.HostError)
        try:
            yield
        finally:
            bindings.install(SimpleNamespace(**self._host), bindings.HostError)

    def _recorder(self, interface: str, name: str) -> Any:
        function, returned = getattr(self._host[interface], name), self._returned.setdefault((interface, name), [])

        def record(*arguments: Any) -> Any:
            value = function(*arguments)
            returned.append(value)
            return value

        return record

    def _player(self, interface: str, name: str) -> Any:
        take = iter(self._returned[interface, name]).__next__
        return lambda *_: take()


async def finished(result: Any) -> Any:
    """The value of a future, or what is none."""
    return await result if isinstance(result, HostFuture) else result


class Place:
    """Where a decode run goes on: embeds and a page of its own."""

    def __init__(self, world: World) -> None:
        self.queue = world.queue
        self.input, self.output = traits.alloc_emb(self.queue), traits.alloc_emb(self.queue)
        self.page = traits.alloc_kvpage(self.queue)
        traits.copy_emb(self.queue, world.output, self.output)
        self.step = self.input, world.position, [*world.pages, *self.page], self.page, 2
        self.run: traits.DecodeRun | None = None

    async def free(self) -> None:
        with suppress(Busy):  # at first, the worker compiles the grammar
            while self.run is not None and not (await self.run.take()).over:
                pass
        for embeds in (self.input, self.output):
            traits.dealloc_emb(self.queue, embeds)
        traits.dealloc_kvpage(self.queue, self.page)


def run_calls(world: World) -> dict[str, Callable[..., Any]]:
    """Decode runs of two tokens."""

    def decode(place: Place) -> None:
        place.run = traits.decode(world.queue, place.output, world.sampler, *place.step)

    return {"decode": decode}


class Bench:
    """Makes a call many times, and gives back what it has made."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.runs = run_calls(world)
        self.calls = core_calls(world) | model_calls(world) | self.runs
        self.places: list[Place] = []
        self.usage = bindings.core.usage  # the host's, whatever stands in its place
        self.frees = {maker: self.calls[undo] for undo, maker in UNDOES.items()} | {
            "import_kvpage": lambda imported: traits.dealloc_kvpage(world.queue, imported.pages),
            "import_prefix": lambda pages: traits.dealloc_kvpage(world.queue, pages),
            "create_queue": traits.destroy_queue,
            "fork_matcher": traits.destroy_matcher,
            "create_detokenizer": traits.destroy_detokenizer,
            "open_matcher": lambda opened: traits.destroy_matcher(opened.matcher),
            "open_blob": traits.close_blob,
            "subscribe": traits.unsubscribe,
            "http_request": lambda response: response.close(),
            "mask_kvpage": lambda _: traits.mask_kvpage(world.queue, world.pages),
            "shift_kvpage": lambda _: traits.shift_kvpage(world.queue, world.pages, -1),
            "copy_kvpage": lambda _: traits.trim_kvpage(world.queue, world.pages, world.position),
        }

    async def arguments(self, name: str) -> list[Any]:
        """What a call is given that must be made before."""
        if name in self.runs:
            self.places.append(Place(self.world))
            return [self.places[-1]]
        maker = UNDOES.get(name) or NEEDS.get(name)
        if maker is None:
            return []
        made = self.calls[maker]()
        return [made if maker in ENDLESS else await finished(made)]

    async def settle(self, name: str, results: list[Any]) -> None:
        """Waits until all is done."""
        for result in results:
            if name in ENDLESS:
                result.cancel()
                continue
            value = await finished(result)
            if name in self.frees:
                await finished(self.frees[name](value))
        for place in self.places:
            await place.free()
        self.places.clear()
        await traits.synchronize(self.world.queue)

    async def until_return(self, name: str, count: int) -> tuple[float, float]:
        """Processor time until a call returns, and of it the guest's own: that of calls whose answers are there."""
        played, world = Played(), self.world
        in_all = await self._timed(name, count)
        arguments = [await self.arguments(name) for _ in range(count)]
        await traits.synchronize(world.queue)
        exported = list(world.exported)
        with played.recording():
            results = await self._block(name, arguments)
        state = list(world.exported), [place.run for place in self.places]
        world.exported[:] = exported
        with played.playing():
            start = used(self.usage)
            again = await self._block(name, arguments)
            own = used(self.usage) - start
            del again
        world.exported[:], runs = state
        for place, run in zip(self.places, runs, strict=True):
            place.run = run
        await self.settle(name, results)
        nothing = self._of_nothing()
        if name == "clock":  # its function is WASI's
            own = nothing
        return (in_all - nothing) / count, max(own - nothing, 0) / count

    async def _timed(self, name: str, count: int) -> int:
        arguments = [await self.arguments(name) for _ in range(count)]
        await traits.synchronize(self.world.queue)
        start = used(self.usage)
        results = await self._block(name, arguments)
        elapsed = used(self.usage) - start
        await self.settle(name, results)
        return elapsed

    async def _block(self, name: str, arguments: list[list[Any]]) -> list[Any]:
        call = self.calls[name]
        if name == "wait":
            return [await call(*each) for each in arguments]
        return [call(*each) for each in arguments]

    def _of_nothing(self) -> int:
        """What a look at the processor time takes itself."""
        looks = [used(self.usage) for _ in range(4)]
        return min(after - before for before, after in pairwise(looks))

    async def until_done(self, name: str, count: int) -> float:
        call = self.calls[name]
        start = monotonic_ns()
        for _ in range(count):
            await (call() or traits.synchronize(self.world.queue))
        return (monotonic_ns() - start) / count

    async def measure(self, name: str, layer: str, count: int) -> tuple[float, float]:
        if layer == "inference":
            return await self.until_done(name, count), 0.0
        return await self.until_return(name, count)


@inferlet
async def main(args: Args) -> None:
    if "child" in args.argv:
        while True:
            await args.receive()
    world = World(args)
    await world.begin()
    bench = Bench(world)
    args.send("here")
    while True:
        order = await args.receive()
        args.send(json.dumps(await bench.measure(*json.loads(order))))
