"""Equal prefixes of long prompts are run once for all inferlets of a tenant.

A prompt is cut into blocks of whole pages. Each block is exported under a name that is a hash of all tokens up to its
end, so equal names mean equal keys. Before a long prompt runs, all of its blocks are asked for at once; those up to the
first that is missing are used, and the others are exported when the prompt has run. Short prompts are left alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256

from inferlet_sdk import traits
from inferlet_sdk.errors import Cancelled, PieError
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.traits.outside.exports import Imported

LEAST_TOKENS = 256
"""Least tokens of a prompt that may be shared: what is shorter runs faster than it is found."""
BLOCK_PAGES = 4
"""Pages of the first exports. With fewer, more of a prompt is shared, at more calls."""
ALIKE = 16
"""Blocks of one size; then they have BLOCK_PAGES more, so that a prompt of thousands of tokens has not many more."""
MOST_BLOCKS = 64
"""Most of them for one prompt."""

Block = tuple[int, int]
"""The first token, and the one behind the last."""


async def share_prefix(sequence: TokenSequence) -> None:
    """Takes over what is there of the prompt's keys, runs the rest of it, and exports its blocks. Does nothing to a
    sequence with a short prompt, or one that has keys. Raises Cancelled if another task closes it meanwhile."""
    if sequence.images.places:  # placeholders do not tell what was seen
        return
    if sequence.computed or not sequence.shares or len(sequence.tokens) < LEAST_TOKENS or sequence.offset:
        return
    blocks = _blocks(len(sequence.tokens) - 1, sequence.info.page_size)
    names = _names(sequence, blocks)
    with sequence as queue:
        found = await _until_missing(sequence, [traits.import_kvpage(queue, name) for name in names], blocks)
        sequence.computed = sequence.found = blocks[len(found) - 1][1] if found else 0
        sequence.pages.adopt([block.pages for block in found], sequence.computed)
        if len(found) < len(blocks):
            sequence.flush()  # all of it, in as few waves as it takes without exports
            with sequence.queues.another() as other:  # what follows the prompt does not wait for its exports
                for name, block in list(zip(names, blocks, strict=True))[len(found) :]:
                    _export(sequence, other, name, block)


def _blocks(tokens: int, page_size: int) -> list[Block]:
    """The whole blocks of the first tokens of a prompt, which end at the same places in all prompts."""
    blocks: list[Block] = []
    end = 0
    for place in range(MOST_BLOCKS):
        start, end = end, end + BLOCK_PAGES * (1 + place // ALIKE) * page_size
        if end > tokens:
            break
        blocks.append((start, end))
    return blocks


def _names(sequence: TokenSequence, blocks: Sequence[Block]) -> list[str]:
    """The hash of all tokens up to the end of each block; with another adapter, keys are others."""
    apart = f"{sequence.adapter}\0{sequence.shared_with}" if sequence.shared_with else sequence.adapter
    digest, names = sha256(apart.encode()), []
    for start, stop in blocks:
        digest.update(array("I", sequence.tokens[start:stop]).tobytes())
        names.append(f"prefix:{digest.hexdigest()}")
    return names


async def _until_missing(
    sequence: TokenSequence, futures: Sequence[HostFuture[Imported]], blocks: Sequence[Block]
) -> list[Imported]:
    """The blocks up to the first that is missing, or is not what it should be; gives back those behind it."""
    taken: list[Imported | None] = []
    wanted = 0
    try:
        for future in futures:
            taken.append(await _taken(future))
        if sequence.closed:
            raise Cancelled("the context was closed while it looked for the keys of its prompt")
        if not sequence.computed:  # otherwise another task was faster
            wanted = _agreeing(sequence.tokens, taken, blocks)
    finally:
        for future in futures[len(taken) :]:
            future.cancel()
        with sequence.queues.some() as queue:
            for block in taken[wanted:]:
                if block is not None:
                    traits.dealloc_kvpage(queue, block.pages)
    return [block for block in taken[:wanted] if block is not None]


async def _taken(future: HostFuture[Imported]) -> Imported | None:
    try:
        return await future
    except PieError:  # it is not there, or there is no room for it
        return None


def _agreeing(tokens: Sequence[int], found: Sequence[Imported | None], blocks: Sequence[Block]) -> int:
    """How many of the first blocks are there and hold the tokens."""
    for place, (block, (start, stop)) in enumerate(zip(found, blocks, strict=False)):
        if block is None or list(block.tokens) != tokens[start:stop]:
            return place
    return len(found)


def _export(sequence: TokenSequence, queue: int, name: str, block: Block) -> None:
    start, stop = block
    pages = sequence.pages.seal(start, stop)
    traits.export_kvpage(queue, name, pages, sequence.tokens[start:stop]).cancel()  # nobody waits
