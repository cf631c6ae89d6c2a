"""Pages that inferlets of a tenant share by name: the commands, and what an address space does with what came."""

from __future__ import annotations

import binascii
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import CallError, InvalidArgument, InvalidState, NotFound, TooLong
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.exports.text_keys import TextKeys
from pie_control.resources.kinds import PAGES, STATES, Resource
from pie_control.resources.ranges import Range, are_sound, merge, total_length
from pie_inference.protocol import ModelDescription

from ..allocate.dealloc import give_back_pages
from ..arrays import addresses
from ..kind import Adopt, Command, Discard
from ..tokens import MOST_CONTEXT, longest_text
from ..values import Import

MOST_SLOTS = 1 << 17
"""Most slots of an export by name: who imports it is charged for as many, until the import is taken."""
MOST_BYTES = 256
MOST_APART = 1024
KEY_MEMORY = 64
"""Bytes of the key of a page."""


def packed_size(tokens: int) -> int:
    """Characters of so many tokens in base64."""
    return -(-4 * tokens // 3) * 4


MOST_PACKED = packed_size(MOST_CONTEXT)
"""Characters of the tokens of a text, in one call."""


class Offer(Command, frozen=True):
    """Gives pages a name, or keys. It is done when the worker has run all that writes the pages. `positions`: what the
    address space knows of each slot; `adapters`: numbers of those that the keys may depend on; `text`: that of a
    beginning; `states`: those that go with the pages, by the place of the page that they hang on."""

    name: str
    pages: Sequence[Range]
    positions: NDArray[np.int32]
    tokens: NDArray[np.int32]
    adapters: Sequence[int]
    text: TextKeys | None = None
    states: Sequence[tuple[int, int]] = ()

    @property
    def searches(self) -> int:
        return 1 if self.text is None else self.text.searches

    def fits(self, model: ModelDescription) -> bool:
        pages, size = total_length(self.pages), model.page_size
        keys = None if self.text is None else self.text.all_pages() if self.text.fits(size) else ()
        if not (are_sound(self.pages) and 0 < pages == len(self.positions) / size):
            return False
        if not all(0 <= place < pages and address >= 0 for place, address in self.states):
            return False
        return super().fits(model) and (keys is None or len(keys) == pages == len(set(keys)))

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        return merge(self.keeps(resource))

    def keeps(self, resource: Resource) -> Sequence[Range]:
        if resource is STATES:
            return [(address, address + 1) for _, address in self.states]
        return self.pages if resource is PAGES else ()


class Fetch(Command, frozen=True):
    """Asks for the pages that have a name, or for the first ones of a text."""

    name: str
    text: TextKeys | None = None

    @property
    def searches(self) -> int:
        return 1 if self.text is None else self.text.searches

    def fits(self, model: ModelDescription) -> bool:
        return super().fits(model) and (
            self.text is None or (bool(self.text.pages) and self.text.fits(model.page_size))
        )

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        return ()


def offer(
    space: AddressSpace,
    queue: int,
    future: int,
    ranges: Sequence[Range],
    *,
    name: str = "",
    positions: NDArray[np.int32],
    tokens: NDArray[np.int32],
    text: TextKeys | None = None,
) -> None:
    """Seals pages, and the states that hang on them, and hands on their export. Raises InvalidState: at a model that
    keeps states, there is none behind the text in the pages."""
    size = positions.nbytes + (KEY_MEMORY * len(text.pages) if text else 0)
    space.check_large(size)
    states = _seal_states(space, ranges, text is not None) if space.model.num_states else ()
    after = 0 if space.has_one_queue else space.hazards.of_pages(queue, ranges)
    seq = space.next_seq()
    space.pages.seal(ranges)
    space.watch(future, lambda value: space.pages.unseal(ranges) if isinstance(value, CallError) else None)
    adapters = tuple(space.adapters_used)
    told = name, ranges, positions, tokens, adapters, text, states
    space.issue(Offer(space.owner, queue, seq, after, future, (), *told))
    space.note_large(size)


def _seal_states(space: AddressSpace, ranges: Sequence[Range], inner: bool) -> Sequence[tuple[int, int]]:
    """The states behind the text in pages and, with `inner`, at the ends of pages before; by the place of the page."""
    size, text = space.model.page_size, space.pages.all_tokens(ranges)[0].intervals
    if not text:
        raise InvalidState("the pages hold no token, so there is no state to be exported with them")
    places = {page: place for place, page in enumerate(addresses(ranges))}
    ends = space.states.seal(text, size if inner else total_length(text))
    return [(places[slot // size], address) for slot, address in ends]


def fetch(space: AddressSpace, queue: int, future: int, name: str = "", text: TextKeys | None = None) -> None:
    """Hands on an import; nobody refuses it."""
    seq = space.next_seq()
    space.imports[future] = None
    space.watch(future, lambda value: _arrived(space, future, value))
    space.issue(Fetch(space.owner, queue, seq, 0, future, (), name, text))


def fetched(space: AddressSpace, future: int) -> Range:
    """First address and number of the pages of a future that is done; the inferlet knows them from now on. Raises
    QuotaExceeded, Exhausted."""
    found = space.imports.pop(future)
    if isinstance(found, CallError):
        raise found
    assert found is not None, "an import was taken before it arrived"
    return found


def cancel_fetch(space: AddressSpace, future: int) -> None:
    """The inferlet will not take what a future gives. Nothing happens if it is no import."""
    if future not in space.imports:
        return
    found = space.imports.pop(future)
    if found is None:
        space.watch_no_more(future)
        space.tell(Discard(space.owner, future))
    elif isinstance(found, tuple) and found[1]:
        first, count = found
        give_back_pages(space, ((first, first + count),))


def _arrived(space: AddressSpace, future: int, value: object) -> None:
    """What an import has found gets addresses."""
    if not isinstance(value, Import):
        space.imports.pop(future, None)
        return
    count = len(value.positions) // space.model.page_size
    if count == 0:
        space.imports[future] = (0, 0)
        return
    try:
        space.check_import(count)
        first, state = space.adopt(value.positions)
    except CallError as error:
        space.imports[future] = error
        space.tell(Discard(space.owner, future))
        return
    space.adapters_used.update(value.adapters.tolist())
    space.imports[future] = (first, count)
    space.tell(Adopt(space.owner, future, first, state))


def parse_tokens(text: str, model: ModelDescription) -> NDArray[np.int32]:
    """Base64 of little-endian u32, as many as a text for the model has at most. Raises InvalidArgument."""
    if len(text) > packed_size(longest_text(model.max_context)):
        raise TooLong(f"more tokens than the {longest_text(model.max_context)} of the longest text: give fewer")
    try:
        tokens = np.frombuffer(binascii.a2b_base64(text, strict_mode=True), "<u4")
    except ValueError as error:
        raise InvalidArgument(f"tokens are base64 of little-endian u32: {error}") from None
    if len(tokens) and tokens.max() >= model.vocab_size:
        raise InvalidArgument(f"token {tokens.max()} is outside of the vocabulary of {model.vocab_size} tokens")
    return tokens.astype(np.int32)


def keys_of(tokens: NDArray[np.int32], page_size: int, apart: str) -> TextKeys:
    """The keys of a text, and of what keeps it apart from equal texts. Raises InvalidArgument."""
    if len(apart.encode()) > MOST_APART:
        raise InvalidArgument(f"`apart` has {len(apart.encode())} bytes, {MOST_APART} at most: take a hash of it")
    return TextKeys.of(tokens, page_size, apart)


def missing(name: str) -> NotFound:
    """The error for a name that no export has."""
    return NotFound(
        f"there is no export {name!r} of this tenant at the worker that serves this inferlet; export-kvpage makes one. "
        "Another worker may have it: an inferlet whose first command is the import is placed there"
    )


def check_name(name: str) -> None:
    """Raises InvalidArgument unless it is short, and can be printed."""
    size = len(name.encode())
    if not 0 < size <= MOST_BYTES:
        raise InvalidArgument(f"the name of an export has 1 to {MOST_BYTES} bytes, not {size}: take a hash of it")
    if not name.isprintable():
        raise InvalidArgument(f"the name of an export must be printable, {name!r} is not")
