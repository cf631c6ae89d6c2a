"""Generation that keeps to a grammar, in the sandbox: with hosts in this process and in others, on the fake model."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pie_control.host_api import grammar
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from pie_inference.protocol import Forward
from tests.helpers.servers import launch, run, started
from tests.helpers.tiers import corpus

IMPORTS = "import asyncio, json\nfrom inferlet_sdk import *\nfrom inferlet_sdk import traits\n"

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["alpha", "beta"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}

EVERY_WAY = f"""
S = {SCHEMA!r}
WAYS = [
    dict(schema=S), dict(schema=json.dumps(S), sampler=Sampler(temperature=0.8, seed=3)),
    dict(schema=S, sampler=Sampler(temperature=0, frequency_penalty=0.5)),
    dict(regex="[a-z]{{3}}-[0-9]{{2,4}}"), dict(grammar='start: "say " W (" " W)~2\\nW: /[a-z]{{2,5}}/'),
]

async def text_of(args, **ways):
    ctx = Context(args.model).fill("hello")
    generation = ctx.generate(300, **ways)
    text = ""
    async for piece in generation:
        text += piece
    return [text, generation.stop_reason, ctx.text == "hello" + text]

async def main(args):
    told = []
    scored = Context(args.model).fill("hello").generate(300, schema=S, logprobs=1)
    async for _ in scored:
        pass
    assert len(scored.logprobs) >= len(scored.tokens) > 20
    json.loads(scored.text)
    for way in WAYS:
        first = await text_of(args, **way)
        same = [first == await text_of(args, **way, run_ahead=False)]
        same.append(first[0] == await Context(args.model).fill("hello").generate_until(max_tokens=300, **way))
        sent = Context(args.model).fill("hello").generate(300, **way)
        await args.stream(sent)
        same.append(first[0] == sent.text)
        drafts = [PromptLookup(), lambda tokens: [104, 101, 108], lambda tokens: known[len(tokens) :][:9]]
        known = [*b"hello", *first[0].encode()]
        for draft in drafts if way.get("sampler", Greedy()).looks_back is False else ():
            drafted = await text_of(args, **way, draft=draft)
            same.append(drafted == first if "sampler" not in way else drafted[1] == "stop")
        told.append([*first, same])
    together = await gather(*(text_of(args, **WAYS[n % 5]) for n in range(12)))
    told.append([one == told[n % 5][:3] for n, one in enumerate(together)])
    return told
"""

FORKED = """
async def main(args):
    ctx = Context(args.model).fill("numbers: ")
    matcher = await Grammar.of_regex("[0-9]{4}(-[0-9]{4}){2}").matcher()
    first = await ctx.generate_until(max_tokens=6, grammar=matcher)
    other, branch = matcher.fork(), ctx.fork().fill("!")
    rest = await ctx.generate_until(grammar=matcher)
    others = await branch.generate_until(grammar=other, sampler=Sampler(seed=5))
    over = [matcher.state.over, other.state.over, matcher.state.tokens]
    empty = await ctx.generate_until(grammar=matcher)
    again = await Grammar.of_regex("[0-9]{4}(-[0-9]{4}){2}").matcher()
    counts = [again.accept(list(b"1234x")), again.allows(ord("-")), again.allows(ord("5")), again.forced()[:1]]
    again.rollback(2)
    counts += [again.state.tokens, again.state.accepting]
    cut = Context(args.model).fill("numbers: ")
    left = await Grammar.of_regex("[0-9]{4}(-[0-9]{4}){2}").matcher()
    before = await cut.generate_until("-", grammar=left)
    return [first, rest, others, over, empty, counts, before, left.state.tokens]
"""

OWN = """
async def main(args):
    matcher = await Grammar.of_regex("(red|green|blue)!").matcher()
    ctx = Context(args.model).fill("colour: ")
    tokens = []
    while not matcher.state.over:
        mask = matcher.mask()
        token = next(t for t in (await ctx.next_dist(256)).tokens if mask[t >> 3] >> (t & 7) & 1)
        matcher.accept([token])
        tokens.append(token)
        ctx.fill([token])
    same = Context(args.model).fill("colour: ")
    return [bytes(tokens).decode(), await same.generate_until(regex="(red|green|blue)!")]
"""

REFUSED = """
async def told(call):
    try:
        found = call()
        await found
    except Exception as error:
        return [type(error).__name__, str(error)]

async def main(args):
    ctx = Context(args.model).fill("hello")
    found = [
        await told(lambda: ctx.generate_until(schema={}, regex="a")),
        await told(lambda: ctx.generate_until(schema=5)),
        await told(lambda: ctx.generate_until(schema={"a": object()})),
        await told(lambda: ctx.generate_until(regex=5)),
        await told(lambda: ctx.generate_until(grammar=5)),
        await told(lambda: ctx.generate_until(regex="a", sampler=lambda dist: dist.tokens[0])),
        await told(lambda: ctx.generate_until(regex="(a")),
        await told(lambda: ctx.generate_until(grammar="start: foo")),
        await told(lambda: ctx.generate_until(schema={"type": "strin"})),
        await told(lambda: traits.open_matcher(ctx.queue, "regex", "a" * 70000)),
        await told(lambda: traits.open_matcher(ctx.queue, "xml", "a")),
        await told(lambda: traits.grammar_mask(77)),
        await told(lambda: matcher.rollback(1)),
    ] if (matcher := await Grammar.of_regex("abc").matcher()) else []
    matcher.close()
    matcher.close()
    found.append(await told(lambda: ctx.generate_until(grammar=matcher)))
    return found
"""

TOLD = [
    ("ValueError", "schema and regex are both given: a text can keep to one of them"),
    ("TypeError", "schema: give a JSON Schema, as a dict or its text, not int 5"),
    ("TypeError", "schema: it cannot be written as JSON"),
    ("TypeError", "regex: give"),
    ("TypeError", "grammar: give a Grammar, a Matcher or the text of a grammar, not int 5"),
    ("TypeError", "sampler: the host cannot keep a function to a grammar"),
    ("InvalidArgument", "the regular expression is wrong:\n    (a\n    ^\nerror: unclosed group"),
    ("InvalidArgument", 'line 1, column 8: unknown name: "foo"'),
    ("InvalidArgument", "Invalid type: strin"),
    ("InvalidArgument", "a grammar of 70000 characters is longer than 65536"),
    ("ValueError", "kind: 'xml' is none of json-schema, regex, lark"),
    ("NotFound", "there is no matcher 77"),
    ("InvalidArgument", "1 tokens are to be taken back, and 0 were accepted"),
    ("InvalidState", "the matcher is closed"),
]


async def result_of(text: str, cache_dir: Path, model: FakeModel | None = None, **options: Any) -> Any:
    client = InProcessClient(model or FakeModel(num_pages=512))
    async with started(cache_dir, client, warm_pool=0, **options) as server:
        return await run(server, IMPORTS + text)


@pytest.mark.parametrize("hosts", corpus([2, 0], lambda _: "any"))
def test_texts_keep_to_their_grammar_however_they_are_made(hosts: int, guest_cache: Path) -> None:
    *told, together = asyncio.run(result_of(EVERY_WAY, guest_cache, hosts=hosts))
    assert together == [True] * 12
    for text, reason, kept, same in told:
        assert (reason, kept, set(same)) == ("stop", True, {True}), text
    for text, *_ in told[:3]:
        value = json.loads(text)
        assert text == json.dumps(value, ensure_ascii=False)
        assert list(value) == ["name", "age", "kind"]
        assert len(value["name"]) <= 12
        assert 0 <= value["age"] <= 150
        assert value["kind"] in ("alpha", "beta")
    assert re.fullmatch("[a-z]{3}-[0-9]{2,4}", told[3][0])
    assert re.fullmatch("say [a-z]{2,5}( [a-z]{2,5}){2}", told[4][0])


def test_a_matcher_goes_on_and_forks_with_its_context(guest_cache: Path) -> None:
    first, rest, others, over, empty, counts, before, left = asyncio.run(result_of(FORKED, guest_cache))
    pattern = "[0-9]{4}(-[0-9]{4}){2}"
    assert re.fullmatch(pattern, first + rest)
    assert re.fullmatch(pattern, first + others)
    assert rest != others
    assert (over, empty) == ([True, True, 14], "")
    assert counts == [4, True, False, [ord("-")], 2, False]
    assert re.fullmatch("[0-9]{4}", before)
    assert left == 4


def test_a_program_chooses_among_what_a_mask_allows(guest_cache: Path) -> None:
    by_hand, by_run = asyncio.run(result_of(OWN, guest_cache))
    assert by_hand == by_run
    assert by_hand in ("red!", "green!", "blue!")


def test_what_is_refused_is_told(guest_cache: Path) -> None:
    found = asyncio.run(result_of(REFUSED, guest_cache))
    assert len(found) == len(TOLD)
    for (kind, message), (wanted_kind, wanted) in zip(found, TOLD, strict=True):
        assert kind == wanted_kind, message
        assert wanted in message


FORCED = """
async def main(args):
    text = "This answer is always the same, whatever anybody asks: "
    ctx = Context(args.model).fill("hello")
    pieces = []
    async for piece in ctx.generate(grammar='start: "' + text + '" /[ab]/'):
        pieces.append(piece)
    return "".join(pieces)[:-1] == text
"""


def test_forced_tokens_are_run_together(guest_cache: Path) -> None:
    """55 tokens are forced: one forward runs them, where a step for each would take as many."""
    model = FakeModel(num_pages=512)
    sizes: list[int] = []
    real = model.run

    def counting(wave: Any) -> Any:
        for batch in wave.batches:
            if isinstance(batch, Forward):
                sizes.extend((batch.q_indptr[1:] - batch.q_indptr[:-1]).tolist())
        return real(wave)

    model.run = counting  # type: ignore[method-assign]
    assert asyncio.run(result_of(FORCED, guest_cache, model)) is True
    assert sum(sizes) >= 55
    assert len([size for size in sizes if size > 20]) == 1
    assert len(sizes) <= 20, "a forward for each forced token"


BESIDE = """
async def main(args, bad: bool):
    ctx = Context(args.model).fill("hello")
    if bad:
        queue = ctx.queue
        matcher = await traits.open_matcher(queue, "regex", "[0-9]{40}")
        await ctx.flush()
        raise RuntimeError("it ends with a matcher")
    return await ctx.generate_until(regex="([a-z]{1,9} ){5,9}", max_tokens=60)
"""


def test_inferlets_that_end_leave_no_matchers_behind(guest_cache: Path) -> None:
    async def main() -> tuple[list[str], int]:
        async with started(guest_cache, InProcessClient(FakeModel(num_pages=512)), warm_pool=0, hosts=0) as server:
            launched = [await launch(server, IMPORTS + BESIDE, {"bad": number % 2 == 1}) for number in range(8)]
            ended = [await listener.ended for _, listener in launched]
            host = vars(vars(vars(server)["_hosts"].all[0])["_link"])["_host"]
            grammars = next(iter(vars(host)["_models"].values())).grammars
            return [one.status for one in ended], len(vars(vars(grammars)["_live"])["_last"])

    statuses, live = asyncio.run(main())
    assert statuses == ["finished", "failed"] * 4
    assert live == 0


OPENED = """
async def told(call):
    try:
        found = call()
        return await found if isinstance(found, HostFuture) else found
    except Exception as error:
        return [type(error).__name__, str(error)]

async def main(args):
    queue = traits.create_queue(args.model)
    text = traits.create_detokenizer(queue)
    plain = await traits.open_matcher(queue, "regex", "[a-z]+")
    forced = await traits.open_matcher(queue, "regex", "ab" + "x" * 150 + "[cd]y")
    found = [plain.advances, forced.advances]
    found.append(traits.advance_matcher(forced.matcher, text, list(b"a"), 1, 5))
    found.append(traits.advance_matcher(forced.matcher, text, [], 1, 1000))
    found.append(traits.advance_matcher(forced.matcher, text, list(b"cx"), 1, 1000))
    found.append(traits.advance_matcher(forced.matcher, text, list(b"y"), 0, 1000))
    found.append(traits.grammar_state(forced.matcher).tokens)
    refused = [
        lambda: traits.advance_matcher(77, text, [], 1, 1),
        lambda: traits.advance_matcher(plain.matcher, 77, [], 1, 1),
        lambda: traits.advance_matcher(plain.matcher, text, [1] * 5000, 1, 1),
        lambda: traits.open_matcher(queue, "regex", "(a"),
        lambda: traits.open_matcher(queue, "regex", "a" * 70000),
        lambda: traits.open_matcher(queue, "regex", "third"),
    ]
    found.append([await told(one) for one in refused])
    traits.destroy_matcher(forced.matcher)
    return [*found, (await traits.open_matcher(queue, "regex", "third")).advances]
"""
ADVANCE_REFUSED = [
    ("NotFound", "there is no matcher 77"),
    ("NotFound", "there is no detokenizer 77"),
    ("QuotaExceeded", "a matcher accepts 4096 tokens at most"),
    ("InvalidArgument", "the regular expression is wrong"),
    ("InvalidArgument", "a grammar of 70000 characters is longer than 65536"),
    ("QuotaExceeded", "there are matchers of 2 grammars: drop some first"),
]


def advanced(accepted: int, forced: str, over: bool = False) -> dict[str, Any]:
    return {"accepted": accepted, "forced": list(forced.encode()), "texts": list(forced), "over": over}


def test_a_matcher_is_opened_and_goes_behind_what_is_forced(guest_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "MOST_MATCHED", 2)
    *found, refused, again = asyncio.run(result_of(OPENED, guest_cache, hosts=0))
    rest = "x" * 146
    assert found == [
        *(False, True),
        advanced(1, "bxxxx"),
        advanced(0, rest),  # so many that their texts are made on a thread
        advanced(1, ""),  # the second token may not come
        advanced(1, "", over=True),
        154,
    ]
    for (kind, message), (wanted_kind, wanted) in zip(refused, ADVANCE_REFUSED, strict=True):
        assert kind == wanted_kind, message
        assert wanted in message
    assert again is False
