"""A worker that listens forgets what one server has left before it serves the next, which counts from 1 again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from pie_inference.grammars.sources import source_of
from pie_inference.protocol import (
    PROTOCOL_VERSION,
    AdapterLoaded,
    Failure,
    GetLogprobs,
    Hello,
    LoadAdapter,
    Ready,
    RunWave,
    Shutdown,
    ToWorker,
    WaveDone,
    decode_from_worker,
    encode,
)
from testing.checkpoints import make_checkpoint
from testing.worker_batches import Driver, Extend, Keys, indptr, ints
from tests.helpers.adapters import make_adapter
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.remote_workers import remote_worker
from tests.inference.grammars.test_rows import batch, row

DIGITS, LETTERS = source_of("regex", "[0-9]{4}"), source_of("regex", "[a-z]{4}")
PROMPT = [7, 8, 9]
TOKENS = range(250)
MODEL = ("--dtype", "float32", "--pages", "64", "--max-batch-tokens", "256", "--embeds", "1024", "--max-adapters", "2")


class Server:
    """What a server says to a worker, from its Hello on."""

    def __init__(self, connection: zmq.Socket[bytes], name: str) -> None:
        self._connection = connection
        self._driver = Driver(self.run, "model")
        assert isinstance(self._ask(Hello(PROTOCOL_VERSION, name)), Ready)

    def _ask(self, message: ToWorker) -> Any:
        self._connection.send_multipart(encode(message))
        assert self._connection.poll(int(HANG_SECONDS * 1000)), "the worker does not answer"
        return decode_from_worker(self._connection.recv_multipart())

    def run(self, wave: RunWave) -> WaveDone:
        done = self._ask(wave)
        assert isinstance(done, WaveDone)
        return done

    def load(self, number: int, folder: Path) -> None:
        loaded = self._ask(LoadAdapter(number, str(folder)))
        assert isinstance(loaded, AdapterLoaded)
        assert loaded.error is None

    def logprobs(self, adapter: int) -> np.ndarray:
        """Of TOKENS behind the prompt, which runs with an adapter. Raises AssertionError for one that is not there."""
        embed, forward = self._driver.forward_batch([Extend(Keys(), PROMPT)])
        forward = msgspec.structs.replace(forward, adapters=ints([adapter]))
        output = ints([self._driver.outputs + len(PROMPT) - 1])
        result: Any = self._driver.run(embed, forward, GetLogprobs(output, indptr([len(TOKENS)]), ints(TOKENS)))[-1]
        found: np.ndarray = result.logprobs
        return found

    def sample(self, matcher: int, count: int, source: str = "") -> tuple[str, tuple[Failure, ...]]:
        """The letter of a run with a matcher, behind `count` others, as soon as its grammar is compiled."""
        self._driver.run(*self._driver.forward_batch([Extend(Keys(), PROMPT)]))
        step = msgspec.structs.replace(batch(row(matcher, count, source)), embeds=ints([self._driver.outputs]))
        deadline = time.monotonic() + HANG_SECONDS
        done = self.run(RunWave(1, "model", (step,)))
        while any(failure.busy for failure in done.failures):
            assert time.monotonic() < deadline
            time.sleep(0.002)
            done = self.run(RunWave(1, "model", (step,)))
        result: Any = done.results[0]
        return "" if done.failures else chr(result.tokens[0]), done.failures


@contextmanager
def server(address: str, name: str) -> Iterator[Server]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as connection:
        connection.setsockopt(zmq.LINGER, 1000)
        connection.connect(address)
        yield Server(connection, name)
        connection.send_multipart(encode(Shutdown()))


@pytest.mark.parametrize("ranks", [1, 2])
def test_adapters_and_matchers_are_those_of_the_server_that_is_served(ranks: int, tmp_path: Path) -> None:
    one, two = make_adapter(tmp_path / "one", seed=1), make_adapter(tmp_path / "two", seed=2)
    model = f"model={make_checkpoint(tmp_path / 'model')}"
    arguments = ("--model", model, *MODEL, "--tensor-parallel", str(ranks))
    with remote_worker(*arguments, secret=None) as worker:
        with server(worker.address, "first") as first:
            plain = first.logprobs(-1)
            first.load(1, one)
            first.load(2, two)
            of_one, of_two = first.logprobs(1), first.logprobs(2)
            assert not np.allclose(of_one, plain)
            assert not np.allclose(of_two, of_one)
            letter, _ = first.sample(1, 0, DIGITS)
            assert letter.isdigit()
        worker.until_it_says("waits for the next one")
        with server(worker.address, "second") as second:
            with pytest.raises(AssertionError, match="adapter"):
                second.logprobs(1)
            _, failures = second.sample(1, 1)
            assert [failure.message for failure in failures] == ["sample: the worker has no matcher 1"]
            second.load(1, two)  # there is room for two again
            second.load(2, one)
            assert np.allclose(second.logprobs(1), of_two)
            assert np.allclose(second.logprobs(2), of_one)
            assert np.allclose(second.logprobs(-1), plain)
            letter, _ = second.sample(1, 0, LETTERS)
            assert "a" <= letter <= "z"
