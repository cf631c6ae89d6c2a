"""Generations in Rust give what those in Python do, whatever they are told: the same text, tokens and reason of the
end, the same refusals, and neither leaves pages or futures."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from pie_control.testing.fake_model import Floats, mix
from pie_control.testing.in_process import InProcessClient
from tests.examples.test_rust_programs import result
from tests.examples.test_rust_states import Act, programs
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.native_host import saying, tokenized
from tests.helpers.scripted_model import HALVES, MERGED, STOP, ScriptedModel, State
from tests.helpers.servers import Listener, started
from tests.helpers.tiers import corpus

LETTERS = list(b"abcdef t")
LIKELY = [*LETTERS, *'"é'.encode(), STOP, *range(min(MERGED.values()), max(MERGED.values()) + 1 + len(HALVES))]
SCHEMA = {
    "type": "object",
    "properties": {"a long name of it": {"type": "integer", "maximum": 99}, "b": {"enum": ["abc", "abd"]}},
    "required": ["a long name of it", "b"],
    "additionalProperties": False,
}
GRAMMARS = [
    *(("regex", text) for text in ("[a-f]{3,9}", "(ab|cd|e f)+", "a{12,20}b", "(the|this| )*", "é+", "(", "abc")),
    *(("regex", text) for text in ("(x{15}[ab]){1,3}", "(a|abc)d{11}(a|b)", "[a-f]{2}y{30}", "[a-f ]*")),
    *(
        ("grammar", f"start: {text}")
        for text in ('"a" (/[b-d]/ "e")+', '"hello hello" | "hello world" /[a-c]*/', "none")
    ),
    *(("schema", json.dumps(one)) for one in (SCHEMA, {"type": "string", "maxLength": 5}, {"type": "nonsense"})),
]
"""Some force many tokens at once; some are wrong."""


class Repetitive(ScriptedModel):
    """What comes depends on the last two tokens, and now and then on all; any token may come, some more likely."""

    def scores(self, state: State) -> Floats:
        if self.next_token is not None:
            return super().scores(state)
        everything = repr(state)
        seen = repr([token for token, _ in state[-2:]]) if crc32(everything.encode()) % 4 else everything
        tokens = np.arange(self._description.vocab_size, dtype=np.uint64)
        hashes = mix(tokens ^ mix(np.array([crc32(seen.encode())], np.uint64)))
        scores: Floats = (hashes >> np.uint64(40)) / 2.0**22
        scores[LIKELY] += 4
        scores[STOP] -= 1.5
        return scores


def random_options(pick: random.Random) -> dict[str, Any]:
    """What `tried` of features.py is told."""
    one: dict[str, Any] = {}

    def maybe(chance: float, **options: Any) -> None:
        if pick.random() < chance:
            one.update(options)

    maybe(0.3, temperature=pick.choice([0.5, 1.3]), seed=pick.randrange(5))
    maybe(0.1, top_p=pick.choice([0.3, 0.9]))
    maybe(0.15, penalty=2.0, window=pick.choice([0, 3, 64]))
    if (what := pick.choices(["", "score", "sample", "beam", "best", "select"], [12, 1, 1, 1, 1, 1])[0]) != "":
        options = {"options": ["".join(pick.choices("abcdef t", k=4)) for _ in range(pick.randrange(5))]}
        maybe(0.3, mean=1)
        one.update({} if what != "select" else options)
        return {"seed": 1, **one, "what": what, "width": pick.choice([1, 2, 3, 5]), "most": pick.choice([0, 1, 2, 5])}
    maybe(0.9, most=pick.choice([0, 1, 2, 3, 7, 12, 40]))
    if pick.random() < 0.5:
        strings = ["".join(pick.choices("abcdef t", k=pick.randint(1, 5))) for _ in range(pick.randint(1, 4))]
        one["stop"] = pick.choice([strings, [*strings, strings[0] + "a"], [*strings, "é", "\ufffd"]])
        maybe(0.05, stop=[*strings, ""])
        maybe(0.05, stop=[*strings, *(f"z{n}" for n in range(20))])
    maybe(0.2, stop_tokens=pick.choices(LIKELY, k=2))
    maybe(0.03, stop_tokens=list(range(180, 256)))
    maybe(0.3, ignore=1)
    maybe(0.3, include=1)
    maybe(0.4, slow=1)
    maybe(0.3, **pick.choice([{"lookup": pick.randint(1, 3), "length": pick.choice([1, 8, 70])}, {"guess": 1}]))
    kind, text = pick.choice(GRAMMARS)
    maybe(0.35, **pick.choice([{"kind": kind, "text": text}] * 2 + [{"choose": pick.randrange(6)}]))
    maybe(0.5, whole=1)
    # A decode run gives as many tokens as have come. What is sampled in vain counts for a seed.
    is_told = not one.keys().isdisjoint(("lookup", "guess", "choose")) or ("slow" in one and "kind" not in one)
    maybe(0.4 * is_told, take=pick.randint(0, 6))
    is_kept = "temperature" not in one or (is_told and one.keys().isdisjoint(("lookup", "guess")))
    maybe(0.25 * is_kept, cancel=pick.randint(0, 3) if is_told else 0)
    return one


def random_acts(seed: int, count: int) -> list[Act]:
    """Generations of contexts that are forked, cut, joined and closed meanwhile."""
    pick, texts = random.Random(seed), 1
    acts: list[Act] = [("new", 0, [], []), ("fill", 0, pick.choices(LETTERS, k=5), [])]
    for _ in range(count):
        place, some = pick.randrange(texts), pick.choices(LETTERS, k=pick.choice([1, 2, 5, 9, 17]))
        name = pick.choices(
            ["try", "fill", "fork", "truncate", "new", "drop", "join", "shut"], [20, 3, 4, 5, 1, 2, 1, 2]
        )[0]
        given, strings = list[int](), list[str]()
        if (name in ("new", "fork", "join") and texts > 6) or (name == "shut" and texts == 1):
            continue
        texts += (name in ("new", "fork", "join")) - (name == "shut")
        if name == "try":
            given, strings = some, [json.dumps(random_options(pick))]
        elif name == "fill":
            given = some
        elif name == "truncate":
            given = [pick.randint(1, 30)]
        elif name == "drop":
            start = pick.randrange(12)
            given = [start, start + pick.randint(1, 6), pick.randrange(2)]
        elif name == "join":
            given = pick.sample(range(texts - 1), min(2, texts - 1))
        acts.append((name, place, given, strings))
    return [*acts, ("left", 0, [], [])]


async def outcomes(cache: Path, program: tuple[bytes, str], runs: list[list[Act]], **options: Any) -> list[Any]:
    """What programs of these acts give, one after the other, at a model of 200 tokens."""
    model = Repetitive(name="toy", page_size=4, num_pages=3000, max_context=200, **options)
    async with started(cache, InProcessClient(model), warm_pool=0) as server:
        info, found = await server.upload(*program), []
        for acts in runs:
            listener = Listener()
            await server.launch(info.program, ["what=acts", f"acts={json.dumps(acts)}"], listener=listener)
            async with asyncio.timeout(HANG_SECONDS):
                found.append(result(await listener.ended))
        return found


@pytest.mark.parametrize("states", corpus([0, 400], kind=lambda _: "a model"))
def test_generations_give_what_those_in_python_do(guest_cache: Path, states: int) -> None:
    runs = [random_acts(seed + states, 30) for seed in range(5)]
    rust, python = (asyncio.run(outcomes(guest_cache, one, runs, states=states)) for one in programs())
    assert rust == python
    reasons = {one[1] for found in rust for one in found if isinstance(one, list) and len(one) == 4}
    assert {"stop", "length"} <= reasons


def told(ways: list[dict[str, Any]]) -> list[Act]:
    """Each way of generation, by a fork of one context."""
    acts: list[Act] = [("new", 0, [], []), ("fill", 0, LETTERS, [])]
    for way in ways:
        acts += [("fork", 0, [], []), ("try", 1, LETTERS, [json.dumps(way)]), ("shut", 1, [], [])]
    return acts


def test_a_draft_changes_nothing_beside_a_grammar(guest_cache: Path) -> None:
    drafts: list[dict[str, Any]] = [
        {},
        {"lookup": 2},
        {"guess": 1},
        {"guess": 1, "stop": ["zz"]},
        {"lookup": 1, "slow": 1},
    ]
    kept = [{"most": 40, "kind": kind, "text": text} for kind, text in GRAMMARS]
    runs = [told([{**one, **draft} for draft in drafts]) for one in kept]
    for program in programs():
        for found in asyncio.run(outcomes(guest_cache, program, runs)):
            assert found == found[:2] * len(drafts)


def test_a_stop_token_ends_forced_tokens_too(guest_cache: Path) -> None:
    way = {"kind": "schema", "text": json.dumps(SCHEMA), "stop_tokens": [ord("m")], "whole": 1}
    for program in programs():
        (found,) = asyncio.run(outcomes(guest_cache, program, [told([way, {**way, "include": 1}])]))
        assert found[::2] == ['{"a long na', '{"a long nam']


def trying(place: int, **way: Any) -> Act:
    """What a context gives, and its tokens."""
    return "try", place, [], [json.dumps(way)]


def test_dropped_tokens_give_no_output(guest_cache: Path) -> None:
    acts: list[Act] = [
        ("new", 0, [], []),
        ("fill", 0, LETTERS * 4, []),
        ("drop", 0, [3, 20, 1], []),
        ("fork", 0, [], []),
    ]
    acts += [
        ("truncate", 1, [20], []),
        ("fork", 1, [], []),
        trying(2, what="sample"),
        trying(2, guess=1, most=3, whole=1),
    ]
    acts += [("fill", 2, [97], []), trying(2, most=6, whole=1), trying(0, most=6, whole=1), ("left", 0, [], [])]
    rust, python = (asyncio.run(outcomes(guest_cache, one, [acts]))[0] for one in programs())
    assert rust == python
    assert all("the last token was dropped" in text for text in rust[:4:2])
    assert len(rust[5]) == 27


def test_a_context_that_is_too_long_runs_nothing(guest_cache: Path) -> None:
    new: Act = ("new", 0, [], [])
    acts = [new, ("fill", 0, LETTERS * 30, [])]
    acts += [trying(0, what=what, most=2) for what in ("sample", "score", "beam", "best")]
    acts += [new, ("fill", 1, LETTERS * 24, []), ("try", 1, LETTERS * 2, ['{"what": "score"}'])]
    acts += [("try", 1, [*LETTERS, 97], ['{"what": "score"}'])]
    rust, python = (asyncio.run(outcomes(guest_cache, one, [acts]))[0] for one in programs())
    assert rust == python
    assert [text.partition(":")[0] for text in rust[:10:2]] == ["too-long"] * 5
    assert len(rust[10]) == len(LETTERS) + 1


def test_no_half_of_a_character_is_left_before_a_stop_string(guest_cache: Path) -> None:
    acts: list[Act] = [("new", 0, [], []), ("fill", 0, list(b"xy"), []), ("fork", 0, [], [])]
    acts += [trying(0, stop=["t"], whole=1), trying(1, stop=["ét"], whole=1, slow=1), ("left", 0, [], [])]
    for program in programs():
        (found,) = asyncio.run(outcomes(guest_cache, program, [acts], next_token=saying("abétt", after=2)))
        assert found == ["abé", tokenized("xyabé"), "ab", tokenized("xyab")]


def test_a_chat_that_was_exported_goes_on(guest_cache: Path) -> None:
    said, more = ["system", "s", "user", "one"], ["user", "two"]
    acts: list[Act] = [("new", 0, [], []), ("chat", 0, [], said), ("export", 0, [], ["asked"])]
    acts += [trying(0, most=4, whole=1), ("export", 0, [], ["answered"]), ("chat", 0, [], more)]
    acts += [trying(0, what="sample")]
    acts += [("resume", 0, [], ["asked", *said]), trying(3, most=4, whole=1), ("chat", 3, [], more)]
    acts += [("resume", 0, [], ["answered", *said]), ("chat", 4, [], more)]
    acts += [trying(3, what="sample"), trying(4, what="sample"), ("resume", 0, [], ["asked", "user", "another"])]
    acts += [("left", 0, [], [])]
    rust, python = (asyncio.run(outcomes(guest_cache, one, [acts]))[0] for one in programs())
    assert rust == python
    assert rust[2:4] == rust[6:8] == rust[8:10]
    assert rust[10:] == [True]


def test_a_chat_goes_on_from_what_is_left_of_it(guest_cache: Path) -> None:
    chat: list[Act] = [("new", 0, [], []), ("chat", 0, [], ["system", "s", "user", "one"]), trying(0, most=4, whole=1)]
    chat += [("chat", 0, [], ["user", "two"]), trying(0, most=4, whole=1)]
    chat += [("chat", 0, [], ["user", "three"]), ("chat", 0, [], ["user", "four"])]
    acts = chat.copy()
    for place, length in enumerate([0, 6, 8, 10, 12, 18, 20, 24, 31, 34, 38, 46, 50, 52, 64, 80, 90, 100], 1):
        acts += [("fork", 0, [], []), ("truncate", place, [length], []), ("chat", place, [], ["user", "more"])]
        acts += [trying(place, what="sample")]
    acts += [("left", 0, [], [])]
    rust, python = (asyncio.run(outcomes(guest_cache, one, [acts]))[0] for one in programs())
    assert rust == python
    assert len({str(one) for one in rust[5::2]}) > 8
