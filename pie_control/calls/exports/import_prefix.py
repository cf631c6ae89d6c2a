"""The pages of the longest beginning of a text that inferlets of the tenant have offered, sealed."""

from __future__ import annotations

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace

from ..kind import Call
from ..values import Import
from .sharing import MOST_PACKED, fetch, keys_of, parse_tokens


def issue(space: AddressSpace, queue: int, tokens: str, apart: str, future: int) -> None:
    """`tokens`: base64 of little-endian u32. Raises NotFound (queue), InvalidArgument. That there are none is no
    error."""
    space.check_command(queue)
    size = space.model.page_size
    text = keys_of(parse_tokens(tokens, space.model), size, apart)
    if not text.pages:
        raise InvalidArgument(f"the tokens fill no page of {size} slots: nothing can be found of them")
    fetch(space, queue, future, text=text)


def _result_bytes(tokens: str, apart: str) -> int:
    """A place and a token are told of each slot: 8 bytes for a token of 16/3 characters."""
    return len(tokens) * 3 // 2


CALL = Call(__name__, issue, value=Import, result_bytes=_result_bytes, most={"tokens": MOST_PACKED})
