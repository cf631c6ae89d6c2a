"""Pie and an opponent side by side: the same model, the same worker settings, the same distance."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from pie_control.client import Client
from pie_control.config import SHIPPED
from pie_inference.device.threads import default_threads
from pie_inference.testing import byte_tokenizer

from ..support.models.random_models import SHAPES, model_folder
from ..support.server import CLOSED, serving
from .client import CompletionClient
from .delay import delayed

PACED = "paced:"
MODELS = (*SHIPPED, *SHAPES)
INFERLETS = 2000


@dataclass(frozen=True)
class Sides:
    """A client of each side; `model` is the name that the opponent's has."""

    pie: Client
    opponent: CompletionClient
    model: str
    tokenizer: Tokenizer

    async def complete(self, prompt: list[int], tokens: int, **more: Any) -> dict[str, Any]:
        """Greedy tokens behind a prompt, at the opponent: the first choice of the answer. Stop tokens do not count."""
        return (await self.choices(prompt, tokens, **more))[0]

    async def check_same(self, programs: Iterable[str], **arguments: Any) -> None:
        """Raises AssertionError unless programs give the same tokens."""
        shown = [await self.pie.run(program, show=True, **arguments) for program in programs]
        assert all(one == shown[0] for one in shown), f"programs give other tokens: {shown}"

    async def choices(self, prompt: list[int], tokens: int, **more: Any) -> list[dict[str, Any]]:
        """All choices of the answer."""
        answer = await self.opponent.complete(**{**self._asked(prompt, tokens), **more})
        return [{**choice, "token_ids": self._tokens(choice)} for choice in answer["choices"]]

    async def stream(self, prompt: list[int], tokens: int) -> AsyncIterator[list[int]]:
        """The same, as it comes."""
        async for event in self.opponent.stream(**self._asked(prompt, tokens)):
            for choice in event["choices"]:
                yield self._tokens(choice)

    def _asked(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        asked = {"model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        return {**asked, "ignore_eos": True, "return_token_ids": True}

    def _tokens(self, choice: dict[str, Any]) -> list[int]:
        """Those that the server tells, or else those of the text, as a client of text has it."""
        if (told := choice.get("token_ids")) is not None:
            return list(told)
        tokens: list[int] = self.tokenizer.encode(choice["text"], add_special_tokens=False).ids
        return tokens


def check_models(models: tuple[str, ...]) -> None:
    """Raises ValueError for a model that is neither ours nor a paced worker nor a folder."""
    if unknown := [name for name in models if not (name in MODELS or name.startswith(PACED) or "/" in name)]:
        known = f"{', '.join(MODELS)}, a pace such as paced:5ms, or the folder of a checkpoint"
        raise ValueError(f"there is no model {', '.join(unknown)}: give {known}")


def settings_of(model: str) -> dict[str, Any]:
    """The settings of a server with a model: one that ships, one with random weights, the folder of a checkpoint, or
    `paced:5ms`, the stand-in for a GPU."""
    if model.startswith(PACED):
        return {"model": "paced=demo", "worker": model}
    return {"model": f"{model}={model_folder(model)}" if model in MODELS else model}


def checkpoint_of(model: str) -> Path:
    """The folder of a model that is none of a pace."""
    return Path(settings_of(model)["model"].rpartition("=")[2])


def threads_for(checkpoint: Path) -> int:
    """As many as Pie's worker takes for it."""
    return default_threads(sum(path.stat().st_size for path in checkpoint.glob("*.safetensors")))


@contextlib.asynccontextmanager
async def servers(model: str, opponent: str = "", **settings: Any) -> AsyncIterator[tuple[str, str]]:
    """The addresses of a server of Pie, and of its opponent: `closed`, or the one at the address `opponent`. `settings`
    are those of both workers, and of Pie those that begin with `pie_`. Raises OpponentError before anything is started
    if the address is that of no such server."""
    if opponent:
        async with CompletionClient(opponent) as client:
            await client.model()
    own = {name.removeprefix("pie_"): value for name, value in settings.items() if name.startswith("pie_")}
    shared = {name: value for name, value in settings.items() if not name.startswith("pie_")}
    worker = {**settings_of(model), **shared}
    bounds = {"max_inferlets": INFERLETS, "max_inferlets_per_client": INFERLETS}
    async with contextlib.AsyncExitStack() as stack:
        pie = await stack.enter_async_context(serving(**{**worker, **bounds, **own}))
        if not opponent:
            opponent = (await stack.enter_async_context(serving(CLOSED, **worker))).url
        yield pie.url, opponent


@contextlib.asynccontextmanager
async def sides(model: str, pie: str, opponent: str, round_trip_ms: float = 0.0) -> AsyncIterator[Sides]:
    """Clients of both, as far away as the round trip says. Raises OpponentError if one is no such server."""
    near, far = delayed(pie, round_trip_ms), delayed(opponent, round_trip_ms)
    async with near as here, far as there, Client(here) as client, CompletionClient(there) as completions:
        yield Sides(client, completions, await completions.model(), await asyncio.to_thread(_tokenizer, model))


def _tokenizer(model: str) -> Tokenizer:
    if model.startswith(PACED):
        return Tokenizer.from_str(byte_tokenizer.tokenizer_json().decode())
    return Tokenizer.from_file(str(checkpoint_of(model) / "tokenizer.json"))


_numbers = itertools.count()


def new_prompt(system: int, task: int) -> list[int]:
    """`system` tokens that all prompts begin with, and `task` tokens that no other one has in this place."""
    random = np.random.default_rng(next(_numbers))
    return [*_tokens(np.random.default_rng(1 << 32), system), *_tokens(random, task)]


def _tokens(random: np.random.Generator, count: int) -> list[int]:
    """Letters and words of each model's vocabulary: no special tokens."""
    found: list[int] = random.integers(65, 250, count).tolist()
    return found
