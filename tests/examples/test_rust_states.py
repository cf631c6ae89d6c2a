"""Contexts in Rust do what those in Python do, and run as many tokens: at a model that keeps states, and when they are
joined or lose tokens at one that keeps none."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from pie_control.testing.in_process import InProcessClient
from tests.examples.test_rust_programs import FOLDER, features, result
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.scripted_model import ScriptedModel, State
from tests.helpers.servers import Listener, started

Act = tuple[str, int, list[int], list[str]]
TEXT = list(range(97, 123))
ALWAYS, SMALL, FEW = ("truncate", "keep", "close", "score", "sample"), ("fill", "generate", "draft"), ("fork", "export")


def next_token(state: State) -> int:
    """A letter that depends on all that is seen."""
    return 97 + crc32(repr(state).encode()) % 26


def model_with_states(states: int = 64) -> ScriptedModel:
    return ScriptedModel(next_token, name="toy", states=states, page_size=4, num_pages=2000, max_context=1024)


async def outcomes(
    cache: Path, program: tuple[bytes, str], runs: list[list[Act]], states: int, **settings: Any
) -> list[Any]:
    """What programs of these acts give, one after the other, each with the number of tokens that ran for it."""
    model, found = model_with_states(states), []
    async with started(cache, InProcessClient(model), warm_pool=0, **settings) as server:
        info = await server.upload(*program)
        for acts in runs:
            listener = Listener()
            await server.launch(info.program, ["what=acts", f"acts={json.dumps(acts)}"], listener=listener)
            async with asyncio.timeout(HANG_SECONDS):
                found.append((result(await listener.ended), model.rows))
            model.rows = 0
        async with asyncio.timeout(HANG_SECONDS):
            while (left := server.statistics().models["toy"][0].scheduler).pages.used != left.export_pages:
                await asyncio.sleep(0.01)
    return found


def both(cache: Path, runs: list[list[Act]], states: int = 64) -> list[Any]:
    """What the programs give in Rust, which is what they give in Python."""
    rust, python = (asyncio.run(outcomes(cache, one, runs, states)) for one in programs())
    assert rust == python
    return rust


def programs() -> list[tuple[bytes, str]]:
    """In Rust and in Python."""
    return [features(), ((FOLDER / "features.py").read_bytes(), "features.py")]


def random_acts(seed: int) -> tuple[list[Act], list[int | str]]:
    """Acts, and what they give."""
    pick, model = random.Random(seed), model_with_states()
    acts: list[Act] = [("new", 0, [], []), ("fill", 0, TEXT[:5], [])]
    texts, found = [TEXT[:5]], list[int | str]()
    for number in range(60):
        place, some = pick.randrange(len(texts)), pick.choices(TEXT, k=pick.randint(1, 9))
        tokens, given, strings = texts[place], list[int](), list[str]()
        name = pick.choice(ALWAYS + (SMALL if len(tokens) < 100 else ()) + (FEW if len(texts) < 8 else ()))
        if name in FEW:
            texts.append(tokens.copy())
            strings = [f"{seed} {number}"]
        elif name == "truncate":
            given = [pick.randint(1, len(tokens))]
            del tokens[given[0] :]
        elif name == "close" and len(texts) > 1:
            del texts[place]
        elif name == "close":
            continue
        elif name == "score":
            given = some
        elif name == "fill":
            tokens += (given := some)
        elif name == "sample":
            found += model.expected(tokens, 1)
        elif name in ("generate", "draft"):
            more = model.expected(tokens, len(some))
            given, text = [len(more)] if name == "generate" else more, "".join(map(chr, more))
            if pick.random() < 0.4:
                strings = [pick.choice(text)]
                text = text[: text.index(strings[0])]
            found.append(text)
            tokens += map(ord, text)
        acts.append((name, place, given, strings))
    return [*acts, *(("sample", place, [], []) for place in range(len(texts)))], [
        *found,
        *(model.expected(tokens, 1)[0] for tokens in texts),
    ]


def test_random_programs(guest_cache: Path) -> None:
    runs = [random_acts(seed) for seed in range(20)]
    done = both(guest_cache, [acts for acts, _ in runs], states=400)
    assert [found for found, _ in done] == [found for _, found in runs]


def prompt(*parts: str) -> list[Act]:
    """A context with a prompt of these parts."""
    return [("new", 0, [], []), ("texts", 0, [], list(parts)), ("sample", 0, [], [])]


def joining_acts(seed: int) -> list[Act]:
    """Acts by which texts share pages, lose tokens in their midst, and are put behind each other in any order."""
    pick = random.Random(seed)
    acts: list[Act] = [("new", 0, [], []), ("fill", 0, pick.choices(TEXT, k=11), [])]
    lengths = [11]
    for number in range(1, 14):
        place = pick.randrange(len(lengths))
        if (name := pick.choice(("new", "fork", "fill", "drop", "drop", "join"))) == "new":
            acts.append(("new", 0, [], []))
            lengths.append(pick.randint(1, 11))
            acts.append(("fill", len(lengths) - 1, pick.choices(TEXT, k=lengths[-1]), []))
        elif name == "fork":
            acts.append(("fork", place, [], []))
            lengths.append(lengths[place])
        elif name == "fill":
            acts.append(("fill", place, pick.choices(TEXT, k=number), []))
            lengths[place] += number
        elif name == "drop":
            start, stop = sorted(pick.choices(range(lengths[place]), k=2))
            acts.append(("drop", place, [start, stop, pick.randrange(2)], []))
        else:
            acts.append(("join", 0, pick.sample(range(len(lengths)), pick.randint(1, min(4, len(lengths)))), []))
            break
    acts.append(("join", 0, pick.sample(range(len(lengths)), len(lengths)), []))
    texts = len(lengths) + sum(name == "join" for name, *_ in acts)
    acts += [
        ("export", texts - 1, [], [f"joined {seed}"]),
        ("fill", texts, TEXT[:3], []),
        ("fill", texts - 1, TEXT[:3], []),
    ]
    return [*acts, *(("generate", place, [6], []) for place in range(texts + 1))]


def test_joins_put_behind_each_other_what_those_in_python_do(guest_cache: Path) -> None:
    done = both(guest_cache, [joining_acts(seed) for seed in range(40)], states=0)
    assert all(joined == opened for (*_, joined, opened), _ in done)


@pytest.mark.parametrize(("max_pages", "start", "stop"), [(4, 1, 3), (5, 2, 10)])
def test_a_drop_without_room_for_its_copies_drops_nothing(
    guest_cache: Path, max_pages: int, start: int, stop: int
) -> None:
    drop: Act = ("drop", 0, [start, stop, 0], [])
    acts: list[Act] = [("new", 0, [], []), ("fill", 0, TEXT[:12], []), ("fork", 0, [], []), drop]
    acts += [("close", 1, [], []), ("fill", 0, TEXT[12:13], []), ("sample", 0, [], []), drop, ("sample", 0, [], [])]
    for program in programs():  # one asks for all copies at once, the other for one after the other
        ((found, _),) = asyncio.run(outcomes(guest_cache, program, [acts], 0, max_pages=max_pages))
        refused, whole, dropped = found
        assert f"the limit is {max_pages}" in refused
        assert whole == model_with_states().expected(TEXT[:13], 1)[0] != dropped


def test_no_token_leaves_a_state(guest_cache: Path) -> None:
    acts: list[Act] = [("drop", 0, [1, 3, 1], []), ("join", 0, [0], [])]
    for act in acts:
        ((found, _),) = both(guest_cache, [[("new", 0, [], []), ("fill", 0, TEXT, []), act]])
        assert "keeps a state of each text, from which no token can be taken out" in found[0]


def test_prompts_are_shared_where_states_are(guest_cache: Path) -> None:
    first, second = "the river and the sea " * 20, "a hill or a mill " * 20
    runs = [prompt(first, second, "ZZ"), prompt(first, "QQ"), prompt(first, second, "YY")]
    runs += [prompt(f"{second}{first}{tail * 40}") for tail in "abc"]
    ran = [tokens for _, tokens in both(guest_cache, runs)]
    assert ran[1] < 10
    assert ran[2] < 10
    assert ran[3] > 300
    assert ran[4] > 300
    assert ran[5] < 60, "a state was left where the second one had parted from the first"


def test_conversations_share_their_system_message_and_what_was_said(guest_cache: Path) -> None:
    runs, system = list[list[Act]](), ["system", "the river and the sea " * 20]
    for question in ("who?", "where is it?"):
        turn: list[Act] = [("new", 0, [], []), ("chat", 0, [], [*system, "user", question])]
        turn += [("generate", 0, [80], []), ("keep", 0, [], []), ("score", 0, TEXT, [])]
        runs += [turn, [*turn, ("chat", 0, [], ["user", "why?"]), ("sample", 0, [], [])]]
    done = both(guest_cache, runs)
    ran = [tokens for _, tokens in done]
    assert ran[0] > 400
    assert max(ran[1:]) < 200
    reply = done[-1][0][0]
    cut: list[Act] = [*turn[:2], ("generate", 0, [80], [reply[60:62]]), ("keep", 0, [], []), ("score", 0, TEXT, [])]
    said = [*system, "user", question, "assistant", reply[:60], "user", "why?"]
    (*_, (_, ran_before), (_, ran_behind)) = both(
        guest_cache, [turn, cut, [("new", 0, [], []), ("chat", 0, [], said), ("sample", 0, [], [])]]
    )
    assert ran_behind < 50 < ran_before


@pytest.mark.parametrize(("start", "stop"), [(3, 60), (40, 72), (66, 70)])
def test_a_chat_that_changes_among_dropped_tokens_is_seen_anew(guest_cache: Path, start: int, stop: int) -> None:
    """What was said one letter a token has fewer tokens in the next turn."""
    asked: list[Act] = [("new", 0, [], []), ("chat", 0, [], ["system", "s" * 30, "user", "who is there?"])]
    said: list[Act] = [("fill", 0, list(b"the the the the the the"), []), ("drop", 0, [start, stop, 0], [])]
    ((found, _),) = both(
        guest_cache, [[*asked, *said, ("chat", 0, [], ["user", "why?"]), ("sample", 0, [], [])]], states=0
    )
    assert isinstance(found[0], int)


def test_a_draft_keeps_to_the_states_that_there_are(guest_cache: Path) -> None:
    text = model_with_states().expected(TEXT, 9)
    drafted: list[Act] = [("new", 0, [], []), ("fill", 0, TEXT, []), ("draft", 0, text, [])]
    twice: list[Act] = [*drafted, ("truncate", 0, [len(TEXT)], []), ("draft", 0, text, [])]
    enough, few = (both(guest_cache, [drafted, twice], states) for states in (64, 2))
    assert enough == [
        (["".join(map(chr, text))], 26 + 4 + 5 + 3),
        (["".join(map(chr, text))] * 2, 26 + 2 * (4 + 5 + 3)),
    ]
    assert [found for found, _ in few] == [found for found, _ in enough]
    assert few[0][1] > enough[0][1]


def test_a_beam_that_goes_on_alone_keeps_no_states(guest_cache: Path) -> None:
    """Each would count as two pages."""
    acts: list[Act] = [("new", 0, [], []), ("fill", 0, TEXT[:8], [])]
    acts += [("try", 0, [], [json.dumps({"what": "beam", "width": 1, "most": 24})])]
    rust, python = (asyncio.run(outcomes(guest_cache, one, [acts], 64, max_pages=16)) for one in programs())
    assert rust == python
    ((best,), tokens), _ = rust[0]
    assert tokens == TEXT[:8] + best[0]
    assert best[0] == model_with_states().expected(TEXT[:8], 24)
