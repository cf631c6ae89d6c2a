"""Contexts that are exported under a name of the program's choice.

Keys depend on the adapter, so its name is a part of the export's: a context with one is not found without it, and
`open_sequence` tells what there is instead.
"""

from __future__ import annotations

from contextlib import suppress

from inferlet_sdk import traits
from inferlet_sdk.errors import InvalidArgument, InvalidState, NotFound, QuotaExceeded
from inferlet_sdk.event_loop import loop_with_others
from inferlet_sdk.sequences.joining import lay
from inferlet_sdk.sequences.queues import Queues
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.traits.arguments import text

WITH, END = " (adapter ", ")"


def full_name(name: str, adapter: str) -> str:
    """The name of the export of a context with an adapter, or "": none."""
    if WITH in text(name, "name") and name.endswith(END):
        raise InvalidArgument(f"{name!r} names an adapter: give the name before it, and a context with the adapter")
    return f"{name}{WITH}{adapter}{END}" if adapter else name


async def export(sequence: TokenSequence, name: str, lease: int = 0) -> bool:
    """Exports all pages of a sequence; a page that is not full is copied for that, and the sequence keeps its own.
    `lease`: seconds for which they are pinned; whether they are."""
    if sequence.pages.dropped:
        raise InvalidState("export: tokens of the context were dropped, and exports have all tokens")
    own = full_name(name, sequence.adapter)
    with sequence as queue:
        sequence.flush()
        sequence.keep_state()
        full = len(sequence.tokens) - len(sequence.tokens) % sequence.info.page_size
        pages = sequence.pages.seal(0, full)
        rest = sequence.pages.copy_rest(queue, len(sequence.tokens))
        try:
            await traits.export_kvpage(queue, own, pages + rest, sequence.tokens)
        finally:
            if rest:
                traits.dealloc_kvpage(queue, rest)
        for other in await _adapters(queue, name):
            if other != sequence.adapter:
                with suppress(NotFound):  # another program was faster
                    await traits.unexport_kvpage(queue, full_name(name, other))
        return bool(lease) and await traits.pin_exports(queue, own, lease) > 0


async def open_sequence(queues: Queues, adapter: str, name: str) -> TokenSequence:
    """A sequence with the tokens and keys of an export. Raises InvalidState if it was made with another adapter."""
    sequence = TokenSequence(queues, adapter=adapter)
    try:
        with sequence as queue:
            found = await _import(queues, queue, name, adapter)
            filled = sum(position >= 0 for position in found.positions)
            if not filled or len(found.tokens) != filled or found.hidden:
                traits.dealloc_kvpage(queue, found.pages)
                raise InvalidState(f"export {name!r} is not one of a context: import it with `traits.import_kvpage`")
            sequence.tokens = list(found.tokens)
            sequence.pages.adopt([found.pages], len(found.tokens))
            if sequence.info.state_pages:
                sequence.states.note(len(found.tokens))
            sequence.computed = len(found.tokens)
            first, behind = found.positions[0], max(found.positions) + 1
            places = [place for place in found.positions if place >= 0] if behind - filled > first else [first]
            lay(sequence, enumerate(places), behind)  # a join may have left gaps between them
            sequence.images.unseen = len(found.tokens)
            sequence.shares = False  # it may have been joined, or be nobody else's: exports do not tell
            return sequence
    except BaseException:
        sequence.close()
        raise


async def _import(queues: Queues, queue: int, name: str, adapter: str) -> traits.Imported:
    try:
        return await _fetch(queues, queue, full_name(name, adapter))
    except NotFound:
        others = await _adapters(queue, name)
        if adapter in others:  # another inferlet has made it meanwhile
            return await _fetch(queues, queue, full_name(name, adapter))
        if not others:
            raise
        made = f"with adapter {others[0]!r}" if others[0] else "without an adapter"
        argument = repr(others[0]) if others[0] else "None"
        raise InvalidState(f"export {name!r} was made {made}: open it with adapter={argument}") from None


async def _fetch(queues: Queues, queue: int, name: str) -> traits.Imported:
    """What is exported under a name. The host keeps room for the largest export, so only some fit at a time: then this
    one waits for another."""
    while True:
        try:
            future = traits.import_kvpage(queue, name)
        except QuotaExceeded:
            if not queues.imports or (loop := loop_with_others()) is None:
                raise
            await loop.any_host_future(list(queues.imports))
            continue
        queues.imports.add(future.number)
        try:
            return await future
        finally:
            queues.imports.discard(future.number)


async def _adapters(queue: int, name: str) -> list[str]:
    """With which adapters contexts are exported under a name; "": without one."""
    found = [export.name for export in await traits.list_exports(queue, name)]
    named = [one.removeprefix(name + WITH)[: -len(END)] for one in found if one.startswith(name + WITH)]
    return [""] * (name in found) + named
