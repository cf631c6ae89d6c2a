"""Runs concurrent inferlets that stream greedy tokens through a server, and describes the server's waves."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pie_control.client import Client
from pie_control.client.running import Running
from pie_control.services.tokenizer import Detokenizer, Tokenizer

from .guests import launch_many
from .samples import median, together
from .server import scheduler_counts

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Waves:
    """Averages over the waves of one turn. Times in milliseconds."""

    batch: float  # tokens in a Sample batch
    worker: float  # the worker's own time for a wave
    guest: float  # inside inferlets, for a wave
    worker_total: float  # the worker's own time for all waves


@dataclass(frozen=True)
class Generated:
    """Tokens of each inferlet, and times in milliseconds."""

    tokens: list[list[int]]
    prompts: float  # until all prompts are in the cache
    prompt_waves: Waves
    per_token: float  # the median inferlet's, while all run; each its own, where that is less than half of the tokens
    in_all: float  # a token of all of them, from the first message of any to the last message of any
    tokens_per_second: float  # of all inferlets, from the first message of any to the last message of any
    waves: Waves


@dataclass(frozen=True)
class Stream:
    """One inferlet as its client saw it: it had the first of `counts` tokens with its first message, and so on; the
    last message has no text, and comes when the program knows that all is over. `start`: when it was told to go."""

    tokens: list[int]
    counts: Sequence[int]
    start: float
    times: Sequence[float]

    @property
    def first(self) -> float:
        """When it begins: with its first message, unless that has all (a piece has several tokens if the program is
        slower than the model; special tokens have no text)."""
        return self.times[0] if self.counts[-1] > self.counts[0] else self.start

    @property
    def last(self) -> float:
        """When it had all."""
        return self.times[self.counts.index(self.counts[-1])]

    @property
    def between(self) -> int:
        """The tokens that came behind `first`."""
        return self.counts[-1] - self.counts[0] or self.counts[-1]

    @property
    def per_token(self) -> float:
        """Seconds, from the first message with a text to the last one. Special tokens behind that do not count: nobody
        sees when they come."""
        if len(self.counts) > 2 and self.counts[-2] > self.counts[0]:
            return (self.times[-2] - self.times[0]) / (self.counts[-2] - self.counts[0])
        return (self.last - self.first) / self.between


async def run_inferlets(
    client: Client,
    program: str,
    prompts: Prompts,
    tokens: int,
    *arguments: str,
    at_once: bool = False,
    tokenizer: Tokenizer | None = None,
) -> Generated:
    """Generates `tokens` greedy tokens behind each prompt, with the program `generate` and further `arguments` of it.
    All prompts run first: one after the other, or `at_once`, in as few waves as the server needs. `tokenizer` finds
    the tokens of each message where the program does not count them: it sleeps, by `--way=piped`."""
    running = await launch_many(client, program, len(prompts), str(tokens), *arguments)
    before, start = await client.statistics(), time.perf_counter()
    await _fill(running, prompts, at_once)
    elapsed, filled = time.perf_counter() - start, await client.statistics()
    streamed = await asyncio.gather(*(_stream(one, tokenizer) for one in running))
    after = await client.statistics()
    wall = max(one.last for one in streamed) - min(one.first for one in streamed)
    return Generated(
        tokens=[one.tokens for one in streamed],
        prompts=1e3 * elapsed,
        prompt_waves=_waves(before, filled),
        in_all=1e3 * wall / median([one.between for one in streamed]),
        per_token=1e3 * _while_all_run(streamed),
        tokens_per_second=sum(one.between for one in streamed) / wall,
        waves=_waves(filled, after),
    )


def _while_all_run(streams: Sequence[Stream]) -> float:
    """Seconds for a token of the median inferlet, by its texts at the client. Before all have begun, and when some have
    ended, waves are smaller, and so sooner done than those of the closed loop."""
    try:
        return together([one.times[:-1] for one in streams], [one.counts[:-1] for one in streams])
    except (RuntimeError, IndexError):
        return median([one.per_token for one in streams])


async def _fill(running: Sequence[Running], prompts: Prompts, at_once: bool) -> None:
    fills = [_fill_one(one, prompt) for one, prompt in zip(running, prompts, strict=True)]
    if at_once:
        await asyncio.gather(*fills)
        return
    for fill in fills:
        await fill


async def _fill_one(running: Running, prompt: Sequence[int]) -> None:
    await running.send(json.dumps(list(prompt)))
    await running.receive()


async def _stream(running: Running, tokenizer: Tokenizer | None) -> Stream:
    start = time.perf_counter()
    go = asyncio.create_task(running.send("go"))
    came = [(time.perf_counter(), str(message)) async for message in running]
    await go
    result = await running.result()
    times, texts = zip(*came, strict=True)
    counts = result["counts"] if tokenizer is None else counts_at(tokenizer, result["tokens"], texts)
    return Stream(result["tokens"], counts, start, times)


def counts_at(tokenizer: Tokenizer, tokens: Sequence[int], texts: Sequence[str]) -> list[int]:
    """How many tokens had come with each of these texts, as far as one can see; with the last one, all."""
    detokenizer = Detokenizer(tokenizer)
    ends = list(itertools.accumulate(len(detokenizer.push_one(token)) for token in tokens))
    come = list(itertools.accumulate(map(len, texts[:-1])))
    return [bisect_left(ends, length) + 1 for length in come] + [len(tokens)]


def _waves(before: dict[str, Any], after: dict[str, Any]) -> Waves:
    """Averages over the waves between two states of a server's statistics."""

    states = [before, after]
    counts = [scheduler_counts(state) for state in states]

    def grown(found: list[dict[str, Any]], name: str) -> float:
        old, new = (one.get(name, 0) for one in found)
        return float(new - old)

    def each(found: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
        return [one[name] for one in found]

    waves, sampled = grown(counts, "waves"), grown(each(counts, "batches"), "sample")
    worker = 1e3 * grown(counts, "worker_seconds")
    runners = each(each(states, "inferlets"), "runner")
    return Waves(
        batch=grown(each(counts, "commands"), "sample") / sampled if sampled else math.nan,
        worker=worker / waves,
        guest=1e3 * grown(runners, "guest_seconds") / waves,
        worker_total=worker,
    )
