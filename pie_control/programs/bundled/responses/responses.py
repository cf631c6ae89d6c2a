"""Serves POST /v1/responses: items in, items out. The server stores responses, and knows the conversation before."""

from typing import Any

from inferlet_sdk import Args, inferlet
from inferlet_sdk.served import (
    Answer,
    ChatRequest,
    Earlier,
    Fields,
    Place,
    ResponseReply,
    check_model,
    fetch_earlier,
    fields_of_response,
    forks,
    input_items,
    open_prompt,
    send_reply,
    served,
    store_answer,
)


@inferlet(reuse=True)
@served
async def main(args: Args) -> dict[str, Any] | None:
    place = Place.of_launch()
    check_model(place)
    fields = Fields.of_launch()
    previous = fields.text("previous_response_id")
    earlier = await fetch_earlier(previous) if previous else Earlier()
    request = await ChatRequest.read(fields_of_response(fields, earlier.items), place, earlier.blobs)
    ctx = open_prompt(place, request.wanted)
    request.fill(ctx)
    await forks(ctx, request.wanted, "input")
    answer = Answer(ctx, request.wanted, 0, request.tools)
    reply = ResponseReply(fields, request.wanted, ctx, answer)
    if not fields.flag("store", True):
        return await send_reply(args.send, reply, answer)
    items = input_items(fields, request.wanted.request_id)
    await store_answer(reply.begun(), items, previous, fields.flag("background"))
    return await send_reply(args.send, reply, answer) or reply.response()
