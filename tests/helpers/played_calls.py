"""An inferlet that makes the calls of a program that was written down (recorded_author.py), and tells what it is told.

Programs name pages, embeds and futures by numbers of their own. Each answer goes to the client at once, so what came
before the inferlet was ended is known.
"""

import base64
import json
from array import array
from typing import Any

from inferlet_sdk import NotFound, PieError, traits
from inferlet_sdk.addresses import Embeds, Pages, Slots
from inferlet_sdk.traits.outside.blobs import Blob
from inferlet_sdk.traits.outside.exports import export_kvpage, import_kvpage

PATIENCE = 200  # times that an export is looked for


class Wrong(Exception):
    """A call was accepted that must be refused, or the other way round."""


class Player:
    def __init__(self, args: Any, program: dict[str, Any]) -> None:
        self.args = args
        self.queues: dict[int, int] = {}
        self.pages: dict[int, int] = {}
        self.embeds: dict[int, int] = {}
        self.futures: dict[int, Any] = {}
        self.values: dict[int, Any] = {}  # of calls that wait in place
        self.page_size = traits.get_model_info(args.model).page_size
        self.images: list[int] = []
        self.samplers = [traits.create_sampler(**sampler_options(one)) for one in program["samplers"]]

    async def load(self, images: int) -> None:
        """Those of the client."""
        queue = traits.create_queue(self.args.model)
        for number in range(images):
            with Blob.open(f"image {number}") as blob:
                self.images.append((await traits.load_image(queue, blob.handle)).image)
        traits.destroy_queue(queue)

    async def play(self, steps: list[dict[str, Any]]) -> bool:
        """False if an export was not found."""
        for step in steps:
            if "await" in step:
                await self.tell(step["await"])
            elif "cancel" in step:
                await self.cancel(step["cancel"], step["pause"])
            elif "import" in step:
                if not await self.find(step):
                    return False
            else:
                self.make(step)
        return True

    def make(self, step: dict[str, Any]) -> None:
        name = step["call"]
        try:
            value = self.call(
                name, [self.read(kind, one) for kind, one in zip(step["kinds"], step["arguments"], strict=False)]
            )
        except PieError as error:
            if step["accepted"]:
                raise Wrong(f"{step}: {type(error).__name__}: {error}") from None
            return
        if not step["accepted"]:
            raise Wrong(f"{step} was accepted")
        made = step["made"]
        if name == "create_queue":
            self.queues[made] = value
        elif name == "destroy_queue":
            del self.queues[step["arguments"][0]]
        elif name in ("alloc_kvpage", "alloc_emb"):
            table = self.embeds if name == "alloc_emb" else self.pages
            table.update((made + n, address) for n, address in enumerate(value))
        elif name == "continue_with_dist":
            self.values[made] = value
        elif made is not None:
            self.futures[made] = value

    def call(self, name: str, arguments: list[Any]) -> Any:
        if name == "create_queue":
            return traits.create_queue(self.args.model)
        if name == "alloc_kvpage":
            queue, count, reserved = arguments
            return traits.reserve_kvpage(queue, count) if reserved else traits.alloc_kvpage(queue, count)
        if name == "export_kvpage":
            return export_kvpage(*arguments)
        if name == "sample" and len(arguments) == 6:
            queue, embed, sampler, recent, allowed, logprobs = arguments
            if logprobs:
                return traits.sample_with_logprobs(queue, embed, sampler, logprobs - 1, recent, allowed)
            return traits.sample(queue, embed, sampler, recent, allowed)
        if name == "embed_img":
            queue, image, first, positions, embeds = arguments
            return traits.embed_img(queue, image, positions, embeds, first)
        if name == "get_next_dist" and isinstance(arguments[1], Embeds):
            return traits.get_next_dists(*arguments)
        if name == "get_logprobs" and isinstance(arguments[1], Embeds):
            return traits.get_logprobs_at(*arguments)
        if name == "decode":
            *arguments, options = arguments
            return traits.decode(*arguments, **options)
        return getattr(traits, name)(*arguments)

    def read(self, kind: str, value: Any) -> Any:
        """An argument, with addresses of this inferlet."""
        match kind:
            case "q":
                return self.queues[value]
            case "p":
                return Pages.of(self.pages[one] for one in value)
            case "e":
                return self.embeds[value] if isinstance(value, int) else Embeds.of(self.embeds[one] for one in value)
            case "s":
                size = self.page_size
                return Slots.of(self.pages[one // size] * size + one % size for one in value)
            case "k":
                return self.samplers[value]
            case "i":
                return self.images[value]
            case "t":
                return [self.token(one) for one in value]
            case "o":
                return self.token(value)
            case "b":
                return base64.b64decode(value)
            case "j":
                options = json.loads(value)
                return {**options, "allowed": base64.b64decode(options.get("allowed", ""))}
        return value

    def token(self, value: Any) -> Any:
        return value if isinstance(value, int) else self.futures[value["future"]]

    async def tell(self, future: int) -> None:
        if future in self.values:
            value = self.values.pop(future)
        elif isinstance(self.futures[future], traits.DecodeRun):
            value = await all_tokens(self.futures[future])
        else:
            value = await self.futures[future]
        await self.args.send(json.dumps([future, plain(value)]))

    async def cancel(self, future: int, pause: int) -> None:
        """After so many looks at what has come."""
        run, over, tokens = self.futures[future], False, list[int]()
        for _ in range(pause):
            if not over:
                part = await run.take()
                tokens, over = tokens + list(part.tokens), part.over
        if not over:
            run.cancel()
        await self.args.send(json.dumps([future, tokens]))

    async def find(self, step: dict[str, Any]) -> bool:
        queue = self.queues[step["queue"]]
        for _ in range(PATIENCE):
            try:
                found = await import_kvpage(queue, step["import"])
            except NotFound:
                await traits.sleep(0.005)
                continue
            self.pages.update((step["made"] + n, address) for n, address in enumerate(found.pages))
            return True
        return False


async def all_tokens(run: traits.DecodeRun) -> list[int]:
    tokens, over = list[int](), False
    while not over:
        part = await run.take()
        tokens, over = tokens + list(part.tokens), part.over
    return tokens


def sampler_options(options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "logit_bias": {int(token): bias for token, bias in options["logit_bias"].items()}}


def plain(value: Any) -> Any:
    """As the reference has it."""
    if isinstance(value, traits.Dist):
        return [[value.tokens, value.probabilities, value.rest]]
    if isinstance(value, list) and value and isinstance(value[0], traits.Dist):
        return [[one.tokens, one.probabilities, one.rest] for one in value]
    if isinstance(value, traits.Verified):
        return [value.accepted, value.token]
    if isinstance(value, traits.ScoredToken):
        listed = value.alternatives
        return [value.token, [value.token, *(one for one, _ in listed)], [value.logprob, *(one for _, one in listed)]]
    if isinstance(value, list | array):
        return [plain(one) for one in value]
    return value if isinstance(value, int | float) else None


async def main(args: Any) -> bool:
    with Blob.open("program") as blob:
        program = json.loads(blob.text())
    player = Player(args, program)
    await player.load(program["images"])
    return await player.play(program["steps"])
