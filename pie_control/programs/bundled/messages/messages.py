"""Serves POST /v1/messages and /v1/messages/count_tokens: Anthropic's form of a conversation."""

from typing import Any

from inferlet_sdk import Args, inferlet
from inferlet_sdk.served import (
    Answer,
    ChatRequest,
    Fields,
    MessageReply,
    Place,
    Refused,
    chat_fields,
    check_model,
    forks,
    marks_of,
    open_prompt,
    renamed,
    send_reply,
    served,
)


@inferlet(reuse=True)
@served
async def main(args: Args) -> dict[str, Any] | None:
    fields = Fields.of_launch()
    try:
        return await answer_request(args, fields)
    except Refused as refused:
        raise renamed(refused, fields) from None


async def answer_request(args: Args, fields: Fields) -> dict[str, Any] | None:
    place = Place.of_launch()
    check_model(place)
    is_count = place.route.endswith("/count_tokens")
    request, marks = await ChatRequest.read(chat_fields(fields, is_count), place), marks_of(fields)
    ctx = open_prompt(place, request.wanted)
    request.fill(ctx)
    if is_count:
        return {"input_tokens": len(ctx)}
    pins = [(request.kept_tokens(ctx.tokens, mark), mark.seconds) for mark in marks]
    await forks(ctx, request.wanted, "messages")
    answer = Answer(ctx, request.wanted, 0, request.tools)
    answer.pins += pins
    reply = MessageReply(request.wanted, ctx, answer, marked=max((count for count, _ in pins), default=0))
    return await send_reply(args.send, reply, answer)
