"""What a server does with the stored answers that the one before did not end."""

from __future__ import annotations

from pie_control.gateway.gateway import Gateway
from pie_control.gateway.refusal import Refused
from pie_control.gateway.request import read_request
from pie_control.gateway.stored.store import KILLED, LOST, MOST_TRIES

from ..attachments import Attachments
from ..callers import Callers
from ..launches import Launches
from .response import ServedResponse


async def begin_again(gateway: Gateway, callers: Callers, attachments: Attachments, launches: Launches) -> None:
    """Those of the background are made anew from their request, a few times; the others fail."""
    unfinished = gateway.stored.unfinished()
    await gateway.stored.count_tries()
    for record in unfinished:
        api = callers.api_of(record.tenant, record.key)
        if not record.background or api is None or record.tries >= MOST_TRIES:
            await gateway.stored.fail(record, KILLED if record.tries >= MOST_TRIES else LOST)
            continue
        try:
            request = read_request(record.route, record.request_id, record.request)
        except Refused as error:
            await gateway.stored.fail(record, str(error))
            continue
        made = ServedResponse(gateway, request, api, None, attachments, launches)
        gateway.stored.make_again(record, made.again(record))
