"""Equal prefixes of long prompts are run once for all inferlets of a tenant.

Before a long prompt runs, its beginning is asked for, in whole pages; what is there is used, and the pages behind it
are offered to others when the prompt has run. Short prompts are left alone.
"""

from __future__ import annotations

from inferlet_sdk import traits
from inferlet_sdk.addresses import Pages
from inferlet_sdk.errors import Cancelled, PieError
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.sequences.sequence import TokenSequence

LEAST_TOKENS = 256
"""Least tokens of a prompt that may be shared: what is shorter runs faster than it is found."""


async def share_prefix(sequence: TokenSequence) -> None:
    """Takes over what is there of the prompt's keys, runs the rest of it, and offers its full pages. Does nothing to a
    sequence with a short prompt, or one that has keys. Raises Cancelled if another task closes it meanwhile."""
    if sequence.images.places:  # placeholders do not tell what was seen
        return
    if sequence.computed or not sequence.shares or len(sequence.tokens) < LEAST_TOKENS or sequence.offset:
        return
    size = sequence.info.page_size
    tokens = sequence.tokens[: (len(sequence.tokens) - 1) // size * size]
    apart = f"{sequence.adapter}\0{sequence.shared_with}" if sequence.shared_with else sequence.adapter
    with sequence as queue:
        found = await _found(sequence, traits.import_prefix(queue, tokens, apart), tokens)
        if sequence.computed:
            return  # another task was faster
        if found:
            sequence.computed = sequence.found = len(found) * size
            sequence.pages.adopt([found], sequence.computed)
        if sequence.found < len(tokens):
            sequence.flush()  # all of it, in as few waves as it takes without exports
            with sequence.queues.another() as other:  # what follows the prompt does not wait for its export
                traits.export_prefix(other, sequence.pages.seal(0, len(tokens)), tokens, apart).cancel()


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
