"""Serves POST /v1/responses, without state: the whole conversation in, items out."""

from typing import Any

from inferlet_sdk import Args, inferlet
from inferlet_sdk.served import (
    Answer,
    ChatRequest,
    Fields,
    Place,
    ResponseReply,
    check_model,
    fields_of_response,
    forks,
    open_prompt,
    send_reply,
    served,
)


@inferlet
@served
async def main(args: Args) -> dict[str, Any] | None:
    place = Place.of_launch()
    check_model(place)
    fields = Fields.of_launch()
    request = await ChatRequest.read(fields_of_response(fields), place)
    ctx = open_prompt(place, request.wanted)
    request.fill(ctx)
    await forks(ctx, request.wanted, "input")
    answer = Answer(ctx, request.wanted, 0, request.tools)
    reply = ResponseReply(fields, request.wanted, ctx, answer)
    return await send_reply(args.send, reply, answer)
