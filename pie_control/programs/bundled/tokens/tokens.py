"""Serves POST /tokenize and /detokenize, in the form of vLLM: a text or a conversation to its tokens, and back."""

from typing import Any

from inferlet_sdk import Args, Context, inferlet, traits
from inferlet_sdk.served import ChatRequest, Fields, Place, check_model, of_field, served
from inferlet_sdk.traits import get_model_info


@inferlet(reuse=True)
@served
async def main(args: Args) -> dict[str, Any]:
    place, fields = Place.of_launch(), Fields.of_launch()
    check_model(place)
    fields.check_priority()
    fields.allow_only("stream", (False,), "tokens come all at once")
    with Context(place.model) as ctx:
        if place.route == "/detokenize":
            with of_field("tokens"):
                return {"prompt": traits.detokenize(ctx, fields.tokens("tokens"))}
        await fill(ctx, fields, place)
        tokens = list(ctx.tokens)
        words = traits.get_vocabs(ctx) if fields.flag("return_token_strs") else None
    return {
        "count": len(tokens),
        "max_model_len": ctx.model.max_context,
        "tokens": tokens,
        "token_strs": None if words is None else [words[one].decode(errors="replace") for one in tokens],
    }


async def fill(ctx: Context, fields: Fields, place: Place) -> None:
    """What the request wants to know the tokens of."""
    if "messages" in fields:
        request = await ChatRequest.read(fields, place)
        request.fill(ctx)
        return
    if not isinstance(fields.get("prompt"), str):
        raise fields.wrong("prompt", "a text, or give messages")
    if fields.flag("add_special_tokens", default=True):
        ctx.fill(get_model_info(place.model).begin_tokens)
    with of_field("prompt"):
        ctx.fill(fields.text("prompt"))
