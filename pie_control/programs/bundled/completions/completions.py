"""Serves POST /v1/completions: prompts in, their continuations out."""

from functools import partial
from typing import Any

from inferlet_sdk import Args, gather, inferlet
from inferlet_sdk.served import (
    TEXT,
    TEXT_PLACE,
    Answer,
    CompletionRequest,
    Echo,
    Fields,
    Place,
    Reply,
    Usage,
    Vocabulary,
    check_model,
    forks,
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
    request = CompletionRequest.read(Fields.of_launch(), place)
    wanted = request.wanted
    prompts = [request.fill(open_prompt(place, wanted), one) for one in request.prompts]
    sizes = [len(ctx) for ctx in prompts]
    answers: list[Answer] = []
    echoes: list[Echo] = []
    scores: list[dict[str, Any]] = []
    for ctx in prompts:
        echo = await Echo.of(ctx, place, wanted.logprobs if request.echo else None)
        own = await forks(ctx, wanted, "prompt")
        scored = await prompt_scores(ctx, place, wanted)
        for one in own:
            answers.append(Answer(one, wanted, len(answers)))
            echoes.append(echo)
            scores.append(scored)
    vocabulary = Vocabulary(prompts[0]) if wanted.logprobs is not None else None
    reply = Reply(TEXT, wanted)
    if not wanted.stream:
        pairs = zip(answers, echoes, strict=True)
        choices = await gather(*(choice_of(one, vocabulary, echo, request.echo) for one, echo in pairs))
        choices = [{**choice, **scored} for choice, scored in zip(choices, scores, strict=True)]
        return reply.body(choices, usage_of(prompts, sizes, answers))
    usages = [partial(usage_of, [ctx], [size]) for ctx, size in zip(prompts, sizes, strict=True)]
    await gather(*(stream(args, reply, one, vocabulary, usages[one.number // wanted.n]) for one in answers))
    if wanted.include_usage:
        await args.send(reply.last_chunk(usage_of(prompts, sizes, answers)))
    return None


async def choice_of(answer: Answer, vocabulary: Vocabulary | None, echo: Echo, is_shown: bool) -> dict[str, Any]:
    """A whole continuation as one of `choices`; `is_shown`: behind its prompt."""
    part = await answer.whole()
    text = echo.text + part.text if is_shown else part.text
    choice = {"index": answer.number, "text": text, "finish_reason": answer.finish_reason, "logprobs": None}
    if vocabulary is not None:
        tokens, scores = (echo.tokens, echo.scores) if is_shown else ((), ())
        unseen = vocabulary.length(tokens) - len(echo.text) if is_shown else 0  # what the prompt begins with
        offsets = vocabulary.offsets(-unseen)
        choice["logprobs"] = vocabulary.text_logprobs([*tokens, *part.tokens], [*scores, *part.logprobs], offsets)
    if answer.wanted.token_ids:
        choice |= {"prompt_token_ids": list(echo.tokens), "token_ids": list(part.tokens)}
    return choice


async def stream(args: Args, reply: Reply, answer: Answer, vocabulary: Vocabulary | None, usage: Usage) -> None:
    """Sends a continuation as it is written; the last chunk tells why it ended."""
    offsets = vocabulary.offsets() if vocabulary is not None else None
    piece = {"index": answer.number, "text": TEXT_PLACE, "finish_reason": None, "logprobs": None}
    async for part in answer.parts(frame=reply.frame(piece)):
        if not part.text and not part.tokens:
            continue
        choice = {"index": answer.number, "text": part.text, "finish_reason": None, "logprobs": None}
        if vocabulary is not None and offsets is not None and part.tokens:
            choice["logprobs"] = vocabulary.text_logprobs(part.tokens, part.logprobs, offsets)
        if answer.wanted.token_ids:
            choice["token_ids"] = list(part.tokens)
        await args.send(reply.chunk(choice, **so_far(answer, usage)))
    end = {"index": answer.number, "text": "", "finish_reason": answer.finish_reason, "logprobs": None}
    await args.send(reply.chunk(end, **so_far(answer, usage)))
