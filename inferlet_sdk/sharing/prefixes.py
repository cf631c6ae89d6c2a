"""Equal prefixes of long prompts are run once for all inferlets of a tenant.

Before a long prompt runs, its beginning is asked for, in whole pages; what is there is used, and the pages behind it
are offered to others when the prompt has run. Short prompts are left alone. What was generated is offered where a
program asks for it (`keep_pages`): the next turn of a conversation begins with the same tokens.

At a model that keeps a state of each text, others can only go on where a state was left. So a prompt runs up to the end
of its first part, that of all parts but the last one, and its own, each in whole pages, and is offered there with the
state; also where it parts from a text of others that have left no state there. The exports have these states, and the
context gives up its own share as it goes on. What was generated is offered up to its last token, which may be within a
page.
"""

from __future__ import annotations

from hashlib import sha256

from inferlet_sdk import traits
from inferlet_sdk.addresses import Pages
from inferlet_sdk.errors import Cancelled, PieError
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.sequences.sequence import LEAST_SHARED, TokenSequence


async def share_prefix(sequence: TokenSequence) -> None:
    """Takes over what is there of the prompt's keys, runs the rest of it, and offers its full pages. Does nothing to a
    sequence with a short prompt, or one that has keys. Raises Cancelled if another task closes it meanwhile."""
    if sequence.computed or len(sequence.tokens) < LEAST_SHARED or not _can_share(sequence):
        return
    size = sequence.info.page_size
    asked, apart = sequence.tokens[:-1], _apart(sequence)
    tokens = asked[: len(asked) // size * size]
    with sequence as queue:
        future = traits.import_prefix(queue, asked, apart)
        parts = await _parting(sequence, future, asked, apart) if sequence.info.state_pages else 0
        found = await _found(sequence, future, asked)
        if sequence.computed:
            return  # another task was faster
        if found:
            count = len(found) * size
            if sequence.info.state_pages:
                count = traits.find_state(queue, found, count)
            sequence.computed = sequence.found = count
            sequence.pages.adopt([found], count)
        if sequence.info.state_pages:
            _run_with_states(sequence, tokens, apart, parts)
        elif sequence.found < len(tokens):
            sequence.flush()  # all of it, in as few waves as it takes without exports
            traits.export_prefix(queue, sequence.pages.seal(0, len(tokens)), tokens, apart).cancel()


async def _parting(sequence: TokenSequence, future: HostFuture[Pages], tokens: list[int], apart: str) -> int:
    """How many first tokens of a prompt others have offered, whether states are there or not. `future`: of the import,
    which is given up if this one is."""
    try:
        return sequence.info.page_size * await traits.known_prefix(sequence.queue, tokens, apart)
    except BaseException:
        future.cancel()
        raise


def _run_with_states(sequence: TokenSequence, tokens: list[int], apart: str, parts: int) -> None:
    """Runs all of the prompt, and offers its first tokens where parts of it end, and where it parts from others."""
    size, before = sequence.info.page_size, sequence.computed
    ends = {end // size * size for end in (*sequence.ends[:1], *sequence.ends[-1:], parts, len(tokens))}
    for end in sorted(end for end in ends if max(before + 1, LEAST_SHARED) <= end <= len(tokens)):
        sequence.compute(end, ())
        traits.export_prefix(sequence.queue, sequence.pages.seal(0, end), tokens[:end], apart).cancel()
        if before:
            traits.drop_state(sequence, sequence.pages.pages, before)
        before = end
    sequence.flush()
    if before:
        traits.drop_state(sequence, sequence.pages.pages, before)


def keep_pages(sequence: TokenSequence) -> None:
    """Offers all full pages of a sequence, and at a model with states all tokens that have run, if a state is behind
    them. What others know of them is not kept twice. Nobody waits for that, and of what has run it happens even if the
    inferlet ends at once. Does nothing to a sequence that is short, or not shared. All tokens but the last run before,
    if they have not, or if the state behind them was lost: that of a reply that a stop string has cut."""
    if (future := _offer(sequence)) is not None:
        future.cancel()


async def pin_pages(sequence: TokenSequence, seconds: int, count: int) -> int:
    """Offers all full pages of a sequence, and pins those of its first `count` tokens; how many tokens are pinned."""
    size = sequence.info.page_size
    tokens = sequence.tokens[: count // size * size]
    if not tokens or not _shareable(sequence):
        return 0
    with sequence as queue:
        if (future := _offer(sequence)) is not None:
            await future
        return size * await traits.pin_exports(queue, "", seconds, tokens, _apart(sequence))


def _offer(sequence: TokenSequence) -> HostFuture[None] | None:
    if not (count := _shareable(sequence)):
        return None
    with sequence as queue:
        sequence.compute(len(sequence.tokens) - 1, ())
        if sequence.info.state_pages:
            count = sequence.computed
            if traits.find_state(queue, sequence.pages.pages, count) != count:
                return None
            sequence.keep_state()
        return traits.export_prefix(queue, sequence.pages.seal(0, count), sequence.tokens[:count], _apart(sequence))


def _shareable(sequence: TokenSequence) -> int:
    """How many of its first tokens others may use, in full pages, when all but the last have run; 0: it is short, or
    not shared."""
    size = sequence.info.page_size
    count = max(sequence.computed, len(sequence.tokens) - 1) // size * size
    return count if count >= LEAST_SHARED and not sequence.pages.dropped and _can_share(sequence) else 0


def _can_share(sequence: TokenSequence) -> bool:
    return sequence.shares and not sequence.offset and not sequence.images.places  # what was seen is in no token


def _apart(sequence: TokenSequence) -> str:
    """With another adapter keys are others; the text of `share` may be long."""
    if not sequence.shared_with:
        return sequence.adapter
    return f"{sequence.adapter}\0{sha256(sequence.shared_with.encode()).hexdigest()}"


async def _found(sequence: TokenSequence, future: HostFuture[Pages], tokens: list[int]) -> Pages:
    """The pages of the longest beginning that is there; none if the sequence cannot use them any more."""
    try:
        found = await future
    except PieError:  # there is no room for it
        return Pages(())
    except BaseException:
        future.cancel()
        raise
    if sequence.closed or sequence.computed or sequence.tokens[: len(tokens)] != tokens:
        if found:
            with sequence.queues.some() as queue:
                traits.dealloc_kvpage(queue, found)
        if sequence.closed:
            raise Cancelled("the context was closed while it looked for the keys of its prompt")
        return Pages(())
    return found
