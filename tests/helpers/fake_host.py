"""A host for tests of the SDK: every function of the WIT world, executed at once in issue order, on a toy model.

It keeps books as the real host does: unknown addresses, full pages, unfilled embeds and double frees are refused. The
model sees (token, position) pairs in the slots that a query attends to, and its next token depends on all of them, so
a wrong page, slot or position changes what comes out. `next_token` replaces it by a script.
"""

from __future__ import annotations

import enum
import hashlib
import json
from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar

from inferlet_sdk import bindings
from pie_control.calls.fused.matching import WHERE_IT_PAYS, least_forced
from pie_control.services.stop_strings import StopStrings
from tests.helpers import wit
from tests.helpers.fake_grammars import FakeMatcher, GrammarError, compiled, constrained, is_over

T = TypeVar("T")
Pair = tuple[int, int]
"""A token and its position."""
State = tuple[Pair, ...]
"""What a query attended to."""

REFERENCE_BIT = 0x8000_0000
SPECIAL = {"<|begin|>": 256, "<|user|>": 257, "<|assistant|>": 258, "<|end|>": 259}
MERGED = {"he": 260, "th": 261, " the": 262, "ab\n": 263, "..": 264, "is": 265}
VOCAB: list[bytes] = [bytes([n]) for n in range(256)] + [t.encode() for t in (*SPECIAL, *MERGED)]
STOP = SPECIAL["<|end|>"]
IMAGE = 0
"""Stands for what is seen in an image: each byte of its blob becomes a vector, as if it were a token from SEEN on."""
SEEN = 1000


class LogLevel(enum.Enum):
    DEBUG = 0
    INFO = 1
    WARNING = 2
    ERROR = 3


class HostError(Exception):
    """Shaped as componentize_py_types.Err with the record `error`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.value = SimpleNamespace(code=code, message=message)


def refuse(code: str, message: str) -> HostError:
    return HostError(code, message)


def _packed(code: str, numbers: Sequence[float]) -> str:
    return b64encode(array(code, numbers)).decode()


def expand(ranges: Sequence[int]) -> list[int]:
    assert len(ranges) % 2 == 0, "ranges are pairs"
    return [a for first, n in zip(ranges[::2], ranges[1::2], strict=True) for a in range(first, first + n)]


def toy_next_token(context: tuple[tuple[int, int], ...]) -> int:
    """Depends on all tokens and positions; now and then a special token or one of several bytes."""
    digest = hashlib.blake2b(repr(context).encode(), digest_size=4).digest()
    choice = int.from_bytes(digest, "little")
    return 260 + choice % 6 if choice % 7 == 0 else 97 + choice % 26


@dataclass
class Model:
    page_size: int = 4
    max_context: int = 256
    stop_tokens: list[int] = field(default_factory=lambda: [STOP])
    next_token: Callable[[tuple[tuple[int, int], ...]], int] = toy_next_token


@dataclass
class Run:
    """A decode run: it takes a step when somebody asks for tokens, and the others before the next command of its
    queue."""

    queue: int
    sampler: int
    state: State  # what the last query attended to
    position: int
    seen: list[Pair]  # context and the run's own tokens
    pages: list[int]
    left: int
    stop: list[int]
    recent: list[int] | None
    window: int
    alternatives: int | None
    scores: list[tuple[list[int], list[float]]] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    untaken: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)  # of a run that is watched
    watch: tuple[int, StopStrings, bool, bool] | None = None  # detokenizer, what stops, send, more
    change: int = 0  # what its adapter makes of tokens
    matcher: FakeMatcher | None = None
    skip: int = 0


class FakeHost:
    """One inferlet's view of the host. `sent`, `result`, `logs` and `calls` tell what it did; `inbox` is what it
    receives.
    """

    def __init__(self, argv: Sequence[str] = (), environment: dict[str, str] | None = None, **model: Any) -> None:
        self.model = Model(**model)
        self.argv = list(argv)
        self.environment_entries = {"inferlet": "i1", "program": "p1", "user": "u1"} | (environment or {})
        self.sent: list[str] = []
        self.is_client_slow = False  # each `send` gives a future, which is done after a `wait` for it
        self.max_unread = 1000
        self.refused: set[str] = set()
        self.inbox: list[str] = []
        self.result: Any = None
        self.logs: list[tuple[str, str]] = []
        self.calls: list[str] = []
        self.clock = 1_000_000_000
        self.futures: dict[int, Any] = {}
        self.asleep: dict[int, int] = {}
        self.token_values: dict[int, int] = {}
        self.last_steps: dict[int, tuple[Any, ...]] = {}  # of queues, which read a distribution
        self.queues: set[int] = set()
        self.pages: dict[int, list[Pair]] = {}
        self.embeds: dict[int, Any] = {}  # a Pair as input, a State as output, None until filled
        self.sealed: set[int] = set()  # pages
        self.exported: dict[
            str, tuple[list[list[Pair]], str, set[tuple[int, int]]]
        ] = {}  # pages, tokens, what is hidden
        self.hidden: set[tuple[int, int]] = set()  # pages with places in them
        self.moved: dict[int, int] = {}  # positions that outputs were given
        self.samplers: dict[int, dict[str, Any]] = {}
        self.runs: dict[int, Run] = {}
        self.reserved: set[int] = set()  # pages that no run has reached
        self.tokens_at_once = 1  # that have come whenever the guest takes tokens of a run
        self.steps_run = 0  # of runs
        self.grammars: dict[int, Any] = {}  # and matchers
        self.detokenizers: dict[int, bytes] = {}
        self.receivers: list[int] = []
        self.adapters: list[str] = []  # each changes the tokens that are run with it
        self.max_pages = 1000
        self.traits = [{"name": "Forward", "version": "1.0", "functions": ["forward"], "supertraits": ["Allocate"]}]
        self.chat_images = False  # whether the chat template shows them
        self.sent_blobs: dict[str, bytes] = {"photo": b"a cat"}
        self.handles: dict[int, bytes] = {}  # of blobs
        self.message_blobs: dict[str, dict[str, bytes]] = {}  # by the text of the message
        self.images: dict[int, bytes] = {}
        self.web: dict[str, tuple[int | None, dict[str, str], bytes]] = {}  # status (None: fails), headers, body
        self.requests: list[dict[str, Any]] = []
        self.bodies: dict[int, bytes] = {}
        self.piece_bytes = 1 << 16
        self.launched: dict[int, dict[str, Any]] = {}
        self.child_status = "finished"
        self.subscriptions: dict[int, str] = {}
        self.published: dict[int, list[tuple[str, str]]] = {}
        self._next = 0
        self.core, self.fused = SimpleNamespace(), SimpleNamespace()
        for interface in set(bindings.INTERFACES) - {"core", "fused"}:
            setattr(self, interface, SimpleNamespace())
        for function in wit.functions():
            setattr(getattr(self, function.interface), function.name, self._recorded(function.name))
        self.core.LogLevel = LogLevel

    def _recorded(self, name: str) -> Callable[..., Any]:
        method = getattr(self, "_" + name)

        def host_call(*arguments: Any) -> Any:
            self.calls.append(name)
            return method(*arguments)

        return host_call

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _future(self, value: Any) -> int:
        number = self._number()
        self.futures[number] = value
        return number

    def _take(self, number: int) -> Any:
        if number in self.asleep or number in self.receivers:
            raise refuse("invalid-state", f"future {number} is not done")
        if number not in self.futures:
            raise refuse("not-found", f"no future {number}")
        value = self.futures.pop(number)
        if isinstance(value, HostError):
            raise value
        return value

    def _check_queue(self, queue: int) -> None:
        if queue not in self.queues:
            raise refuse("not-found", f"no queue {queue}")
        for run in self.runs.values():
            while run.queue == queue and run.left:  # what comes after it
                self._step(run)

    # ---- core ----

    def _get_arg(self) -> list[str]:
        return self.argv

    def _get_env(self) -> list[tuple[str, str]]:
        return list(self.environment_entries.items())

    def _send(self, message: str) -> int | None:
        if len(self.asleep) >= self.max_unread or message in self.refused:
            raise refuse("quota-exceeded", "too much waits for the client")
        self.sent.append(message)
        return self._sleep(1) if self.is_client_slow else None

    def _receive(self) -> int:
        number = self._number()
        self.receivers.append(number)
        self._deliver()
        return number

    def _deliver(self) -> None:
        while self.receivers and self.inbox:
            self.futures[self.receivers.pop(0)] = self.inbox.pop(0)

    def _set_result(self, value: str) -> None:
        self.result = json.loads(value)

    def _log(self, level: LogLevel, message: str) -> None:
        self.logs.append((level.name.lower(), message))

    def _now(self) -> int:
        return self.clock

    def _sleep(self, nanoseconds: int) -> int:
        number = self._number()
        self.asleep[number] = self.clock + nanoseconds
        return number

    def _wait(self, numbers: list[int]) -> list[int]:
        self._deliver()
        done = self._done(numbers)
        if not done and numbers:
            sleeping = [n for n in numbers if n in self.asleep]
            assert sleeping, f"the guest waits for ever: {numbers}"
            self.clock = max(self.clock, min(self.asleep[n] for n in sleeping))
            done = self._done(numbers)
        return done

    def _done(self, numbers: list[int]) -> list[int]:
        for number in [n for n, due in self.asleep.items() if due <= self.clock]:
            del self.asleep[number]
            self.futures[number] = None
        return [n for n in numbers if n not in self.asleep and n not in self.receivers]

    def _cancel(self, number: int) -> None:
        if number in self.receivers:
            self.receivers.remove(number)
        elif self.asleep.pop(number, None) is None:
            if self.runs.pop(number, None) is not None:
                return
            if number not in self.futures:
                raise refuse("not-found", f"no future {number}")
            del self.futures[number]

    def _drop(self, handle: int) -> None:
        tables: tuple[dict[int, Any], ...] = (self.samplers, self.detokenizers, self.grammars, self.handles)
        for table in (*tables, self.images, self.bodies, self.subscriptions, self.launched):
            if handle in table:
                del table[handle]
                return
        raise refuse("not-found", f"no handle {handle}")

    def _available_models(self) -> list[str]:
        return ["toy"]

    def _check_model(self, model: str) -> None:
        if model != "toy":
            raise refuse("not-found", f"no model {model!r}; there is: toy")

    def _get_model_info(self, model: str) -> str:
        self._check_model(model)
        info = {
            "name": model,
            "architecture": "Toy",
            "page_size": self.model.page_size,
            "vocab_size": len(VOCAB),
            "max_context": self.model.max_context,
            "max_batch_tokens": 64,
            "max_dist": len(VOCAB),
            "stop_tokens": self.model.stop_tokens,
            "bos_text": "<|begin|>",
            "eos_text": None,
            "has_chat_template": True,
            "image_token": IMAGE,
            "traits": [trait | {"a key of the future": []} for trait in self.traits],
            "a key of the future": [1],
        }
        return json.dumps(info)

    def _create_queue(self, model: str) -> int:
        self._check_model(model)
        number = self._number()
        self.queues.add(number)
        return number

    def _destroy_queue(self, queue: int) -> None:
        self._check_queue(queue)
        self.queues.remove(queue)

    def _synchronize(self, queue: int) -> int:
        self._check_queue(queue)
        return self._future(None)

    def _set_queue_priority(self, queue: int, priority: int) -> None:
        self._check_queue(queue)

    def _usage(self) -> str:
        held = {"pages": len(self.pages), "embeds": len(self.embeds), "queues": len(self.queues)}
        held |= {"futures": len(self.futures), "max_memory_bytes": 1, "cpu_nanoseconds": 1, "max_cpu_nanoseconds": 1}
        limits = {"max_pages": self.max_pages, "max_embeds": 999, "max_queues": 99, "max_futures": 999}
        return json.dumps(held | limits | {"a key of the future": 1})

    # ---- http ----

    def _http_request(self, method: str, url: str, headers: str, body: str, options: str) -> int:
        """Answered by what `web` has for the URL, else by what was asked."""
        asked = {"method": method, "url": url, "headers": json.loads(headers), "body": b64decode(body).decode()}
        self.requests.append(asked | json.loads(options))
        status, answered, data = self.web.get(url, (200, {}, json.dumps(asked).encode()))
        if status is None:
            return self._future(refuse("request-failed", data.decode()))
        number = self._number()
        self.bodies[number] = data
        about = {"status": status, "url": url, "headers": list(answered.items()), "a key of the future": 1}
        return self._future((number, json.dumps(about)))

    def _read_body(self, body: int, most: int) -> int:
        if body not in self.bodies:
            raise refuse("not-found", f"no body {body}")
        most = min(most, self.piece_bytes)
        piece, self.bodies[body] = self.bodies[body][:most], self.bodies[body][most:]
        return self._future(b64encode(piece).decode())

    def _keep_body(self, body: int) -> int:
        if body not in self.bodies:
            raise refuse("not-found", f"no body {body}")
        return self._future(self._keep(self.bodies.pop(body)))

    # ---- topics: those of this inferlet alone ----

    def _broadcast(self, topic: str, message: str) -> int:
        queues = [number for number, name in self.subscriptions.items() if name == topic]
        for number in queues:
            self.published[number].append((self.environment_entries["inferlet"], message))
        return self._future(min(len(queues), 1))

    def _subscribe(self, topic: str) -> int:
        number = self._number()
        self.subscriptions[number], self.published[number] = topic, []
        return number

    def _receive_from(self, handle: int) -> int:
        if handle in self.launched:
            inbox = self.launched[handle]["inbox"]
            return self._future((inbox.pop(0), "", []) if inbox else None)
        if handle not in self.subscriptions:
            raise refuse("not-found", f"no source {handle}")
        assert self.published[handle], "the guest waits for ever"
        sender, message = self.published[handle].pop(0)
        return self._future((message, sender, []))

    # ---- children: each says what it is sent, and ends when it is joined ----

    def _launch(self, program: str, arguments: list[str], options: str) -> int:
        number = self._number()
        self.launched[number] = {"program": program, "arguments": arguments, "inbox": []} | json.loads(options)
        return number

    def _child(self, child: int) -> dict[str, Any]:
        if child not in self.launched:
            raise refuse("not-found", f"there is no child {child}")
        return self.launched[child]

    def _join(self, child: int) -> int:
        one = self._child(child)
        result = json.dumps([one["program"], *one["arguments"]])
        end = {"inferlet": f"i{child}", "status": self.child_status, "result": result, "error": None, "new": 1}
        return self._future(json.dumps(end))

    def _send_child(self, child: int, message: str) -> int | None:
        self._child(child)["inbox"].append(message)
        return self._sleep(1) if self.is_client_slow else None

    def _cancel_child(self, child: int) -> None:
        self._child(child)

    # ---- allocate ----

    def _alloc_kvpage(self, queue: int, count: int, reserved: bool) -> int:
        self._check_queue(queue)
        if len(self.pages) + count > self.max_pages:
            raise refuse("quota-exceeded", f"{count} pages asked, limit {self.max_pages}; free some")
        first = self._allocate(self.pages, count, list)
        self.reserved |= set(range(first, first + count) if reserved else ())
        return first

    def _alloc_emb(self, queue: int, count: int) -> int:
        self._check_queue(queue)
        return self._allocate(self.embeds, count, lambda: None)

    def _allocate(self, pool: dict[int, T], count: int, new: Callable[[], T]) -> int:
        first = self._next + 1
        self._next += count
        pool.update({first + n: new() for n in range(count)})
        return first

    def _dealloc_kvpage(self, queue: int, pages: list[int]) -> None:
        self._free(queue, self.pages, expand(pages))

    def _dealloc_emb(self, queue: int, embeds: list[int]) -> None:
        self._free(queue, self.embeds, expand(embeds))

    def _free(self, queue: int, pool: dict[int, T], addresses: list[int]) -> None:
        self._check_queue(queue)
        self._check_owned(pool, addresses)
        for address in addresses:
            del pool[address]
            if pool is self.pages:
                self.reserved.discard(address)
                self.sealed.discard(address)
                self.hidden = {one for one in self.hidden if one[0] != address}

    def _check_owned(self, pool: dict[int, T], addresses: list[int]) -> None:
        for address in addresses:
            if address not in pool:
                raise refuse("not-found", f"address {address} is not owned")

    def _slot(self, address: int) -> tuple[list[Pair], int]:
        page, offset = divmod(address, self.model.page_size)
        self._check_owned(self.pages, [page])
        return self.pages[page], offset

    def _copy_kvpage(self, queue: int, source: list[int], target: list[int]) -> None:
        self._check_queue(queue)
        sources, targets = expand(source), expand(target)
        assert len(sources) == len(targets)
        for from_address, to_address in zip(sources, targets, strict=True):
            page, offset = self._slot(from_address)
            into, into_offset = self._slot(to_address)
            assert to_address // self.model.page_size not in self.sealed, "copy to a sealed page"
            assert offset < len(page), "copy of an unfilled slot"
            assert into_offset == len(into), "this double fills pages in order only"
            into.append(page[offset])
            if (from_address // self.model.page_size, offset) in self.hidden:
                self.hidden.add((to_address // self.model.page_size, into_offset))

    def _copy_emb(self, queue: int, source: list[int], target: list[int]) -> None:
        self._check_queue(queue)
        sources, targets = expand(source), expand(target)
        assert len(sources) == len(targets)
        self._check_owned(self.embeds, sources + targets)
        read = [(self.embeds[embed], self.moved.get(embed)) for embed in sources]
        for embed, (held, moved) in zip(targets, read, strict=True):
            if held is None:
                raise refuse("invalid-state", "a source embed was never filled")
            self.embeds[embed] = held
            self.moved.pop(embed, None)
            if moved is not None:
                self.moved[embed] = moved

    def _trim_kvpage(self, queue: int, pages: list[int], keep: int) -> None:
        self._check_queue(queue)
        for number, page in enumerate(expand(pages)):
            if page in self.sealed and len(self.pages[page]) > max(0, keep - number * self.model.page_size):
                raise refuse("invalid-state", f"page {page} is sealed")
        self._check_owned(self.pages, expand(pages))
        if any(set(run.pages) & set(expand(pages)) for run in self.runs.values()):
            raise refuse("invalid-state", "a decode run goes on and sees tokens of these pages")
        for page in expand(pages):
            self.hidden -= {(page, place) for place in range(max(0, keep), self.model.page_size)}
            del self.pages[page][max(0, keep) :]
            keep -= self.model.page_size

    # ---- blobs, images ----

    def _blob_names(self) -> list[str]:
        return list(self.sent_blobs)

    def _open_blob(self, name: str) -> int:
        if name not in self.sent_blobs:
            raise refuse("not-found", f"no blob {name!r}")
        return self._keep(self.sent_blobs[name])

    def _blob(self, handle: int) -> bytes:
        if handle not in self.handles:
            raise refuse("not-found", f"no blob {handle}")
        return self.handles[handle]

    def _read_blob(self, handle: int, offset: int, length: int) -> tuple[str, int]:
        assert length <= 1 << 18
        data = self._blob(handle)
        return b64encode(data[offset : offset + length]).decode(), len(data)

    def _await_message(self, number: int) -> Any:
        """A text from the client comes with what `message_blobs` has for it."""
        message = self._await(number)
        if not isinstance(message, str):
            return message
        return message, "", [(name, self._keep(data)) for name, data in self.message_blobs.get(message, {}).items()]

    def _keep(self, data: bytes) -> int:
        number = self._number()
        self.handles[number] = data
        return number

    def _num_embs_needed(self, queue: int, width: int, height: int) -> int:
        self._check_queue(queue)
        return width * height

    def _load_image(self, queue: int, handle: int) -> int:
        self._check_queue(queue)
        data = self._blob(handle)
        if data.startswith(b"broken"):
            return self._future(refuse("invalid-argument", "the image is broken"))
        number = self._number()
        self.images[number] = data
        return self._future((number, [ord("["), *[IMAGE] * len(data), ord("]")]))

    def _await_image(self, number: int) -> Any:
        return self._await(number)

    def _embed_img(self, queue: int, image: int, first: int, positions: list[int], embeds: list[int]) -> None:
        if image not in self.images:
            raise refuse("not-found", f"no image {image}")
        seen = self.images[image][first : first + len(positions)]
        self._embed_txt(queue, [SEEN + byte for byte in seen], positions, embeds)

    # ---- input text, forward ----

    def _embed_txt(self, queue: int, tokens: list[int], positions: list[int], embeds: list[int]) -> None:
        self._check_queue(queue)
        addresses = expand(embeds)
        self._check_owned(self.embeds, addresses)
        assert len(tokens) == len(positions) == len(addresses)
        for token, position, address in zip(tokens, positions, addresses, strict=True):
            self.embeds[address] = (self._token_value(token), position)

    def _token_value(self, token: int) -> int:
        if not token & REFERENCE_BIT:
            return token
        number = token - REFERENCE_BIT
        if number not in self.token_values:
            raise refuse("not-found", f"no sampled token {number}")
        return self.token_values[number]

    def _forward(
        self,
        queue: int,
        context: list[int],
        inputs: list[int],
        output: list[int],
        embeds: list[int],
        tokens: list[int],
        positions: list[int],
        mask: list[int],
        adapter: str,
        sampler: int,
        k: int,
        temperature: float,
        scores: bool,
    ) -> int:
        """Each input looks at itself only, if scores are asked for."""
        self._check_queue(queue)
        if tokens:
            self._embed_txt(queue, tokens, positions, inputs)
        self._change(inputs, adapter)
        seen, new = sum(len(self.pages[page]) for page in expand(context)), len(expand(inputs))
        if mask:
            self._run_masked(context, inputs, output, embeds, mask)
        else:
            self._run_causal(context, inputs, output, embeds)
        assert (sampler != 0) + (temperature != 0) + scores <= 1
        if sampler:
            return self._sample(queue, embeds[0], sampler, [], "", 0)
        if temperature:
            if tokens and not mask:
                self.last_steps[queue] = positions[-1], inputs[0], (context, output, embeds), adapter, k, temperature
            return self._get_next_dist(queue, embeds, k, temperature)
        return self._future([0.0] * seen + [1.0] * new) if scores else 0

    def _continue_with_dist(self, queue: int, token: int) -> Any:
        if queue not in self.last_steps:
            raise refuse("invalid-state", f"queue {queue} has had no step to go on from")
        position, embed, lists, adapter, k, temperature = self.last_steps[queue]
        context, output, target = lists
        reads: Any = [token], [position + 1], [], adapter, 0, k, temperature, False
        return self._await_dists(self._forward(queue, context, [embed, 1], output, target, *reads))

    def _run_causal(self, context: list[int], inputs: list[int], output: list[int], embeds: list[int]) -> None:
        self._check_owned(self.pages, expand(context) + expand(output))
        self._check_owned(self.embeds, expand(inputs) + expand(embeds))
        seen = [
            pair
            for page in expand(context)
            for place, pair in enumerate(self.pages[page])
            if (page, place) not in self.hidden
        ]
        states = self._run(seen, [self._as_input(e) for e in expand(inputs)], expand(output))
        targets = expand(embeds)
        if targets:
            for embed in targets:
                self.moved.pop(embed, None)
            self.embeds.update(zip(targets, states[-len(targets) :], strict=True))

    def _run(self, seen: list[Pair], inputs: list[Pair | None], output: list[int]) -> list[State]:
        states: list[State] = []
        for filled in inputs:
            if filled is None:
                raise refuse("invalid-state", "an input embed was never filled")
            if output:
                self._append(output, filled)
            seen = [*(pair for pair in seen if pair[1] < filled[1]), filled]
            assert filled[1] < self.model.max_context
            states.append(tuple(seen))
        return states

    def _available_adapters(self, queue: int) -> list[str]:
        self._check_queue(queue)
        return self.adapters

    def _change(self, inputs: list[int], adapter: str) -> None:
        """An input is another token with an adapter."""
        if not adapter:
            return
        change = self._change_of(adapter)
        held = {embed: self._as_input(embed) for embed in expand(inputs)}
        self.embeds.update({embed: pair and (pair[0] + change, pair[1]) for embed, pair in held.items()})

    def _await_scores(self, number: int) -> str:
        return _packed("f", self._await(number))

    def _change_of(self, adapter: str) -> int:
        if adapter and adapter not in self.adapters:
            raise refuse("not-found", f"no adapter {adapter}")
        return 100_000 * (1 + self.adapters.index(adapter)) if adapter else 0

    def _run_masked(
        self, context: list[int], inputs: list[int], output: list[int], embeds: list[int], mask: list[int]
    ) -> None:
        slots = [(page, place) for page in expand(context) for place in range(len(self.pages[page]))]
        given = [self._as_input(embed) for embed in expand(inputs)]
        columns = [None if slot in self.hidden else self.pages[slot[0]][slot[1]] for slot in slots] + given
        states: list[State] = []
        for pair in given:
            assert pair is not None
            count, *mask = mask
            ranges, mask = mask[: 2 * count], mask[2 * count :]
            seen = set(expand(ranges))
            states.append(tuple(one for n, one in enumerate(columns) if n in seen and one is not None))
            if output:
                self._append(output, pair)
        assert not mask
        targets = expand(embeds)
        if targets:
            self.embeds.update(zip(targets, states[-len(targets) :], strict=True))

    def _as_input(self, embed: int) -> Pair | None:
        """An output that is fed back counts as a token that depends on all that it has seen."""
        held = self.embeds[embed]
        if held is None or isinstance(held[0], int):
            return held  # type: ignore[no-any-return]
        digest = hashlib.blake2b(repr(held).encode(), digest_size=4).digest()
        return int.from_bytes(digest, "little"), self.moved.get(embed, held[-1][1])

    def _mask_kvpage(self, queue: int, pages: list[int], hidden: list[int]) -> None:
        self._check_queue(queue)
        self._check_owned(self.pages, expand(pages))
        slots = [(page, place) for page in expand(pages) for place in range(self.model.page_size)]
        named = [slots[place] for place in expand(hidden)]
        for page, place in named:
            if place >= len(self.pages[page]):
                raise refuse("invalid-state", f"slot {place} of page {page} holds no token")
        self.hidden = (self.hidden - set(slots)) | set(named)

    def _set_positions(self, queue: int, positions: list[int], embeds: list[int]) -> None:
        self._check_queue(queue)
        addresses = expand(embeds)
        self._check_owned(self.embeds, addresses)
        assert len(positions) == len(addresses)
        for position, address in zip(positions, addresses, strict=True):
            held = self._as_input(address)
            if held is None:
                raise refuse("invalid-state", f"embed {address} was never filled")
            if self.embeds[address] == held:
                self.embeds[address] = (held[0], position)
            else:
                self.moved[address] = position

    def _append(self, pages: list[int], pair: Pair) -> None:
        free = (p for p in pages if len(self.pages[p]) < self.model.page_size and p not in self.reserved)
        page = next(free, None)
        if page is None:
            raise refuse("invalid-state", "no free slot in the output pages")
        if page in self.sealed:
            raise refuse("invalid-state", f"page {page} is sealed")
        self.pages[page].append(pair)

    # ---- exports ----

    def _export_kvpage(self, queue: int, name: str, pages: list[int], tokens: str) -> int:
        self._check_queue(queue)
        addresses = expand(pages)
        self._check_owned(self.pages, addresses)
        assert addresses
        count = sum(len(self.pages[page]) for page in addresses)
        assert not tokens or len(b64decode(tokens)) == 4 * count
        self.sealed |= set(addresses)
        hidden = {(n, place) for n, page in enumerate(addresses) for one, place in self.hidden if one == page}
        self.exported[name] = [self.pages[page] for page in addresses], tokens, hidden
        return self._future(None)

    def _import_kvpage(self, queue: int, name: str) -> int:
        self._check_queue(queue)
        missing = refuse("not-found", f"there is no export {name!r}")
        return self._future(self.exported.get(name, missing))

    def _await_import(self, number: int) -> tuple[int, int, str]:
        pages, tokens, hidden = self._take(number)
        if len(self.pages) + len(pages) > self.max_pages:
            raise refuse("quota-exceeded", f"{len(pages)} pages imported, limit {self.max_pages}; free some")
        first = self._allocate(self.pages, len(pages), list)
        for n, held in enumerate(pages):
            self.pages[first + n] = held
            self.sealed.add(first + n)
        self.hidden |= {(first + n, place) for n, place in hidden}
        size = self.model.page_size
        positions = [pair[1] for held in pages for pair in [*held, *[(0, -1)] * (size - len(held))]]
        places = [number for n, place in sorted(hidden) for number in (n * size + place, 1)]
        about = {"tokens": tokens, "positions": _packed("i", positions), "hidden": places, "a key of the future": 1}
        return first, len(pages), json.dumps(about)

    def _unexport_kvpage(self, queue: int, name: str) -> int:
        self._check_queue(queue)
        known = self.exported.pop(name, None) is not None
        return self._future(None if known else refuse("not-found", f"there is no export {name!r}"))

    def _list_exports(self, queue: int, prefix: str) -> int:
        self._check_queue(queue)
        found = [(name, pages) for name, (pages, *_) in self.exported.items() if name.startswith(prefix)]
        listed = [{"name": name, "pages": len(pages), "tokens": sum(map(len, pages))} for name, pages in found]
        return self._future(json.dumps(listed))

    # ---- tokenize ----

    def _tokenize(self, queue: int, text: str, special_tokens: bool) -> list[int]:
        self._check_queue(queue)
        tokens, rest = [], text.encode()
        known = [n for n in range(len(VOCAB)) if special_tokens or n not in SPECIAL.values()]
        while rest:
            token = max((n for n in known if rest.startswith(VOCAB[n])), key=lambda n: len(VOCAB[n]))
            tokens.append(token)
            rest = rest[len(VOCAB[token]) :]
        return tokens

    def _detokenize(self, queue: int, tokens: list[int]) -> str:
        self._check_queue(queue)
        return b"".join(VOCAB[t] for t in tokens if t not in SPECIAL.values()).decode(errors="replace")

    def _create_detokenizer(self, queue: int) -> int:
        self._check_queue(queue)
        number = self._number()
        self.detokenizers[number] = b""
        return number

    def _push_tokens(self, number: int, tokens: list[int]) -> str:
        held = self.detokenizers[number] + b"".join(VOCAB[t] for t in tokens if t not in SPECIAL.values())
        for length in range(len(held), max(len(held) - 4, -1), -1):
            try:
                text = held[:length].decode()
            except UnicodeDecodeError:
                continue
            self.detokenizers[number] = held[length:]
            return text
        self.detokenizers[number] = b""
        return held.decode(errors="replace")

    def _get_vocabs(self, queue: int) -> str:
        import base64

        return "\n".join(base64.b64encode(b).decode() for b in VOCAB)

    def _format_chat(self, queue: int, messages: str, tools: str, add_generation_prompt: bool) -> str:
        turns = [f"<|{m['role']}|>{m['content']}<|end|>" for m in json.loads(messages)]
        return "<|begin|>" + "".join(turns) + ("<|assistant|>" if add_generation_prompt else "")

    def _tokenize_chat(self, queue: int, messages: str, tools: str, add_generation_prompt: bool) -> list[int]:
        tokens = [SPECIAL["<|begin|>"]]
        for message in json.loads(messages):
            tokens += self._tokenize(queue, f"<|{message['role']}|>", True)
            content = message["content"]
            for part in [{"text": content}] if isinstance(content, str) else content:
                shown = [IMAGE] if self.chat_images else []
                tokens += self._tokenize(queue, part["text"], False) if "text" in part else shown
            tokens.append(STOP)
        return tokens + ([SPECIAL["<|assistant|>"]] if add_generation_prompt else [])

    # ---- outputs ----

    def _state(self, queue: int, embed: int) -> State:
        self._check_queue(queue)
        self._check_owned(self.embeds, [embed])
        state: State | None = self.embeds[embed]
        if state is None:
            raise refuse("invalid-state", f"embed {embed} was never filled")
        if isinstance(state[0], int):
            raise refuse("invalid-state", f"embed {embed} holds an input token; run forward first")
        return state

    def _get_next_dist(self, queue: int, embeds: list[int], k: int, temperature: float) -> int:
        tokens, probabilities, rest = list[int](), list[float](), list[float]()
        for embed in expand(embeds):
            best = self.model.next_token(self._state(queue, embed))
            others = [t for t in range(97, 123) if t != best][: k - 1]
            tokens += [best, *others]
            probabilities += [0.5] + [0.01] * len(others)
            rest.append(0.5 - 0.01 * len(others))
        return self._future((_packed("I", tokens), _packed("f", probabilities), rest))

    def _get_logprobs(self, queue: int, embeds: list[int], tokens: list[int]) -> int:
        rows = expand(embeds)
        each = len(tokens) // len(rows)
        assert each * len(rows) == len(tokens)
        best = [self.model.next_token(self._state(queue, embed)) for embed in rows for _ in range(each)]
        return self._future([-0.5 if token == one else -5.0 for token, one in zip(tokens, best, strict=True)])

    def _create_sampler(self, config: str) -> int:
        number = self._number()
        self.samplers[number] = json.loads(config)
        return number

    def _sample(self, queue: int, embed: int, sampler: int, recent: list[int], allowed: str, logprobs: int) -> int:
        """A repetition penalty is the distance to the last occurrence here: just something that depends on `recent`."""
        context = self._state(queue, embed) + tuple((self._token_value(token), -1) for token in recent)
        assert sampler in self.samplers
        if logprobs > 33:
            raise refuse("invalid-argument", f"{logprobs} log-probabilities, there may be 33")
        token = self.model.next_token(context)
        number = self._future((token, *self._scores(context, logprobs - 1)) if logprobs else token)
        self.token_values[number] = token
        return number

    def _scores(self, state: State, alternatives: int) -> tuple[list[int], list[float]]:
        """Of what comes next and of the most probable tokens: the first is what comes next, the others are letters."""
        best = self.model.next_token(state)
        others = [best, *(token for token in range(97, 123) if token != best)][:alternatives]
        return [best, *others], [-0.5, *(-0.5 if token == best else -5.0 for token in others)]

    def _take_text(self, number: int, detokenizer: int) -> tuple[int, str]:
        token = self._take(number)
        return token, self._push_tokens(detokenizer, [token])

    # ---- decode runs ----

    def _decode(
        self,
        queue: int,
        embed: int,
        sampler: int,
        input_embed: int,
        position: int,
        context: list[int],
        pages: list[int],
        steps: int,
        stop: list[int],
        options: str,
        matcher: int,
        skip: int,
    ) -> int:
        state = self._state(queue, embed)
        self._check_owned(self.embeds, [input_embed])
        self._check_owned(self.pages, expand(context) + expand(pages))
        assert sampler in self.samplers
        free = sum(self.model.page_size - len(self.pages[page]) for page in expand(pages))
        if not 1 <= steps <= 1024 or len(stop) > 64:
            raise refuse("invalid-argument", f"{steps} steps, {len(stop)} stop tokens")
        if free < steps - 1:
            raise refuse("invalid-state", f"{steps} steps need {steps - 1} free slots, there are {free}")
        seen = [pair for page in expand(context) for pair in self.pages[page]]
        assert all(pair[1] < position for pair in seen)
        assert position + steps - 1 <= self.model.max_context
        given = json.loads(options or "{}")
        assert given.keys() <= {"recent", "window", "allowed", "logprobs", "adapter"}
        number = self._number()
        self.runs[number] = Run(
            queue, sampler, state, position, seen, expand(pages), steps, stop, given.get("recent"),
            given.get("window", 0), given.get("logprobs"), change=self._change_of(given.get("adapter", "")),
        )  # fmt: skip
        if matcher:
            self.runs[number].matcher = FakeMatcher(self.grammars[matcher].grammar, self.grammars[matcher].tokens)
            self.runs[number].skip = skip
        self.embeds[embed] = self.embeds[input_embed] = None
        return number

    def _step(self, run: Run) -> None:
        self.steps_run += 1
        if run.made:
            pair = (run.made[-1] + run.change, run.position + len(run.made) - 1)
            page = next(p for p in run.pages if len(self.pages[p]) < self.model.page_size)
            self.reserved.discard(page)
            self.pages[page].append(pair)
            run.seen.append(pair)
            run.state = tuple(run.seen)
        recent = [] if run.recent is None else [*run.recent, *run.made][-run.window :]
        state = run.state + tuple((token, -1) for token in recent)
        token = self.model.next_token(state)
        if run.matcher is not None:
            token = constrained(run.matcher, token, run.made, run.stop)
        if run.alternatives is not None:
            run.scores.append(self._scores(state, run.alternatives))
        run.left = 0 if token in run.stop else run.left - 1
        run.made.append(token)
        if run.matcher is not None and token not in run.stop and is_over(run.matcher, run.made, run.skip):
            run.left = 0
        run.untaken.append(token)
        if run.watch is not None:
            self._follow(run, token, run.watch)

    def _follow(self, run: Run, token: int, watch: tuple[int, StopStrings, bool, bool]) -> None:
        detokenizer, strings, send, more = watch
        by_token = token in run.stop
        run.texts.append("" if by_token else self._push_tokens(detokenizer, [token]))
        said = strings.push(run.texts[-1])
        if strings.found:
            run.left = 0
        elif not run.left and (by_token or not more):
            said += strings.rest()
        if send and said:
            self.sent.append(said)

    def _run_of(self, number: int) -> Run:
        if number not in self.runs:
            raise refuse("not-found", f"no decode run {number}")
        return self.runs[number]

    def _take_run(self, number: int, detokenizer: int) -> tuple[list[int], list[str], bool, str]:
        run = self._run_of(number)
        while run.left and (run.watch is not None or len(run.untaken) < self.tokens_at_once):
            self._step(run)
        tokens, run.untaken = run.untaken, []
        texts, run.texts = run.texts, []
        if run.watch is None and detokenizer:
            texts = [self._push_tokens(detokenizer, [token]) for token in tokens]
        if not run.left:
            del self.runs[number]
        scores, run.scores = run.scores[: len(tokens)], run.scores[len(tokens) :]
        ids, logprobs = (
            ([n for one in column for n in one] for column in zip(*scores, strict=True)) if scores else ((), ())
        )
        return (
            tokens,
            texts,
            not run.left,
            b64encode(array("I", ids).tobytes() + array("f", logprobs).tobytes()).decode(),
        )

    def _watch_run(self, number: int, detokenizer: int, options: str) -> None:
        run, given = self._run_of(number), json.loads(options)
        assert run.watch is None
        assert given.keys() <= {"stop", "held", "send", "more"}
        strings = StopStrings(given.get("stop", []), given.get("held", ""))
        run.watch = detokenizer, strings, given.get("send", False), given.get("more", False)
        for token in run.untaken:
            self._follow(run, token, run.watch)

    def _verify(self, queue: int, embeds: list[int], draft: list[int], sampler: int) -> int:
        assert sampler in self.samplers
        rows = expand(embeds)
        if len(rows) != len(draft) + 1:
            raise refuse("invalid-argument", f"{len(rows)} embeds and {len(draft)} draft tokens")
        chosen = [self.model.next_token(self._state(queue, embed)) for embed in rows]
        agree = [token == wanted for token, wanted in zip(chosen, draft, strict=False)]
        accepted = [*agree, False].index(False)
        return self._future((accepted, chosen[accepted]))

    def _await(self, number: int) -> Any:
        self._wait([number])
        return self._take(number)

    _await_done = _await_number = _await_text = _await_dists = _await_logprobs = _await_verified = _await
    _await_response = _await
    _await_scored_token = _await

    # ---- grammars ----

    def _open_matcher(self, queue: int, kind: str, text: str, options: str) -> int:
        assert queue in self.queues
        try:
            return self._future(compiled(kind, text, **json.loads(options or "{}")))
        except GrammarError as error:
            return self._future(refuse("invalid-argument", str(error)))

    def _handle(self, value: Any) -> int:
        number = self._number()
        self.grammars[number] = value
        return number

    def _await_matcher(self, number: int) -> tuple[int, bool]:
        found = self._take(number)
        if isinstance(found, HostError):
            raise found
        matcher = FakeMatcher(found, [])
        return self._handle(matcher), is_over(matcher, [], WHERE_IT_PAYS)

    def _advance_matcher(
        self, matcher: int, detokenizer: int, tokens: list[int], skip: int, most: int
    ) -> tuple[int, list[int], list[str], bool]:
        one, least = self.grammars[matcher], least_forced(skip)
        accepted = one.accept(tokens)
        found = one.inner().forced() if least and accepted == len(tokens) else []
        forced = found[:most] if len(found) >= least else []
        one.accept(forced)
        return accepted, forced, [self._push_tokens(detokenizer, [token]) for token in forced], one.inner().is_over

    def _fork_matcher(self, matcher: int) -> int:
        return self._handle(FakeMatcher(self.grammars[matcher].grammar, self.grammars[matcher].tokens))

    def _grammar_mask(self, matcher: int) -> str:
        return str(self.grammars[matcher].mask())

    def _grammar_accept(self, matcher: int, tokens: list[int]) -> int:
        return int(self.grammars[matcher].accept(tokens))

    def _grammar_rollback(self, matcher: int, count: int) -> None:
        self.grammars[matcher].rollback(count)

    def _grammar_forced(self, matcher: int) -> list[int]:
        return list(self.grammars[matcher].inner().forced())

    def _grammar_state(self, matcher: int) -> str:
        one, inner = self.grammars[matcher], self.grammars[matcher].inner()
        return json.dumps({"accepting": inner.is_accepting, "over": inner.is_over, "tokens": len(one.tokens)})

    def _source(self) -> tuple[str, str, str]:
        raise AssertionError("tests call run_program")

    def _made_ahead(self) -> bool:
        return False
