"""Contexts that are exported under a name of the program's choice."""

from __future__ import annotations

from inferlet_sdk import traits
from inferlet_sdk.errors import InvalidState
from inferlet_sdk.sequences.queues import Queues
from inferlet_sdk.sequences.sequence import TokenSequence


async def export(sequence: TokenSequence, name: str) -> None:
    """Exports all pages of a sequence; a page that is not full is copied for that, and the sequence keeps its own."""
    if sequence.pages.dropped:
        raise InvalidState("export: tokens of the context were dropped, and exports have all tokens")
    with sequence as queue:
        sequence.flush()
        full = len(sequence.tokens) - len(sequence.tokens) % sequence.info.page_size
        pages = sequence.pages.seal(0, full)
        rest = sequence.pages.copy_rest(queue, len(sequence.tokens))
        try:
            await traits.export_kvpage(queue, name, pages + rest, sequence.tokens)
        finally:
            if rest:
                traits.dealloc_kvpage(queue, rest)


async def open_sequence(queues: Queues, adapter: str, name: str) -> TokenSequence:
    """A sequence with the tokens and keys of an export."""
    sequence = TokenSequence(queues, adapter=adapter)
    try:
        with sequence as queue:
            found = await traits.import_kvpage(queue, name)
            if len(found.tokens) != sum(position >= 0 for position in found.positions) or found.hidden:
                traits.dealloc_kvpage(queue, found.pages)
                raise InvalidState(f"export {name!r} is not one of a context: import it with `traits.import_kvpage`")
            sequence.tokens = list(found.tokens)
            sequence.offset = found.positions[0]
            sequence.pages.adopt([found.pages])
            sequence.computed = len(found.tokens)
            sequence.rewind(len(found.tokens) - 1)  # its output is not exported
            return sequence
    except BaseException:
        sequence.close()
        raise
