"""Serves POST /v1/chat/completions: a conversation in, the assistant's next message out."""

from functools import partial
from typing import Any

from inferlet_sdk import Args, gather, inferlet
from inferlet_sdk.served import (
    CHAT,
    CHUNK,
    TEXT_PLACE,
    Answer,
    ChatRequest,
    Fields,
    Place,
    Reply,
    Usage,
    Vocabulary,
    Wanted,
    check_model,
    delta_of,
    forks,
    message_of,
    open_prompt,
    prompt_scores,
    served,
    so_far,
    usage_of,
)


@inferlet(reuse=True)
@served
async def main(args: Args) -> dict[str, Any] | None:
    place = Place.of_launch()
    check_model(place)
    request = await ChatRequest.read(Fields.of_launch(), place)
    wanted = request.wanted
    ctx = open_prompt(place, wanted)
    request.fill(ctx)
    prompt = list(ctx.tokens)
    answers = [
        Answer(one, wanted, number, request.tools) for number, one in enumerate(await forks(ctx, wanted, "messages"))
    ]
    scored = await prompt_scores(ctx, place, wanted)
    vocabulary = Vocabulary(ctx) if wanted.logprobs is not None else None
    usage = partial(usage_of, [ctx], [len(prompt)])
    if not wanted.stream:
        choices = await gather(*(choice_of(one, vocabulary) for one in answers))
        others = {**told(prompt, wanted), **scored}
        return Reply(CHAT, wanted).body(choices, usage(answers), **others)
    reply = Reply(CHUNK, wanted)
    await gather(*(stream(args, reply, one, vocabulary, prompt, usage) for one in answers))
    if wanted.include_usage:
        await args.send(reply.last_chunk(usage(answers)))
    return None


async def choice_of(answer: Answer, vocabulary: Vocabulary | None) -> dict[str, Any]:
    """A whole answer as one of `choices`."""
    part = await answer.whole()
    choice = {"index": answer.number, "message": message_of(part), "finish_reason": answer.finish_reason}
    choice["logprobs"] = vocabulary.chat_logprobs(part) if vocabulary is not None else None
    return {**choice, "token_ids": list(part.tokens)} if answer.wanted.token_ids else choice


async def stream(
    args: Args, reply: Reply, answer: Answer, vocabulary: Vocabulary | None, prompt: list[int], usage: Usage
) -> None:
    """Sends an answer as it is written; the first chunk names the role, the last one tells why it ended."""
    role, others, calls = {"role": "assistant"}, told(prompt, answer.wanted), 0
    piece = {"index": answer.number, "delta": {"content": TEXT_PLACE}, "finish_reason": None, "logprobs": None}
    async for part in answer.parts(frame=reply.frame(piece)):
        delta = delta_of(part, calls)
        calls += len(part.calls)
        if not delta and not part.tokens:
            continue
        choice = {"index": answer.number, "delta": {**role, **delta}, "finish_reason": None, "logprobs": None}
        if vocabulary is not None and part.tokens:
            choice["logprobs"] = vocabulary.chat_logprobs(part)
        if answer.wanted.token_ids:
            choice["token_ids"] = list(part.tokens)
        await args.send(reply.chunk(choice, **others, **so_far(answer, usage)))
        role, others = {}, {}
    end = {"index": answer.number, "delta": role, "finish_reason": answer.finish_reason, "logprobs": None}
    await args.send(reply.chunk(end, **others, **so_far(answer, usage)))


def told(prompt: list[int], wanted: Wanted) -> dict[str, Any]:
    """The tokens of the prompt, for those who ask for token ids."""
    return {"prompt_token_ids": prompt} if wanted.token_ids else {}
