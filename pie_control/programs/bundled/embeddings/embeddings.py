"""Serves POST /v1/embeddings: texts or tokens in, their vectors out."""

from array import array
from base64 import b64encode
from typing import Any

from inferlet_sdk import Args, TooLong, inferlet
from inferlet_sdk.retrieval.embedding import embed, text_tokens
from inferlet_sdk.served import Fields, Place, Refused, check_model, of_field, served, too_long
from inferlet_sdk.served.fields import tokens_of
from inferlet_sdk.traits import get_model_info

MOST_INPUTS = 2048
MOST_NUMBERS = {"float": 180_000, "base64": 690_000}
"""All vectors of an answer have at most so many together: it has up to 4 MiB."""


@inferlet(reuse=True)
@served
async def main(args: Args) -> dict[str, Any]:
    place, fields = Place.of_launch(), Fields.of_launch()
    check_model(place)
    fields.check_priority()
    fields.allow_only("stream", (False,), "vectors come all at once")
    info = get_model_info(place.model)
    form = fields.one_of("encoding_format", ("float", "base64"), "float")
    dimensions = fields.whole("dimensions", least=1, most=info.hidden_size, default=info.hidden_size)
    inputs = inputs_of(fields)
    if len(inputs) * dimensions > MOST_NUMBERS[form]:
        raise fields.refuse("input", f"{len(inputs)} vectors of {dimensions} numbers are too many for one answer")
    try:
        tokens = [text_tokens(place.model, one, f"input[{number}]") for number, one in enumerate(inputs)]
    except TooLong as error:
        raise too_long(error.message, "input") from None
    except ValueError as error:
        raise Refused(str(error), "input") from None
    with of_field("input"):
        vectors = await embed(tokens, place.model, dimensions=dimensions, adapter=place.adapter)
    count = sum(map(len, tokens))
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": number, "embedding": written(vector, form)}
            for number, vector in enumerate(vectors)
        ],
        "model": fields.text("model", place.model),
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }


def inputs_of(fields: Fields) -> list[Any]:
    """What `input` holds: a text, a list of texts, a list of tokens, or a list of those."""
    given = fields.get("input")
    if isinstance(given, str) or (given and tokens_of(given) is not None):
        given = [given]
    if isinstance(given, list) and 0 < len(given) <= MOST_INPUTS:
        if all(isinstance(one, str) for one in given):
            return list(given)
        inputs = [tokens for one in given if (tokens := tokens_of(one)) is not None]
        if len(inputs) == len(given):
            return inputs
    raise fields.wrong("input", f"a text, a list of token ids, or a list of 1 to {MOST_INPUTS} of either")


def written(vector: "array[float]", form: str) -> str | list[float]:
    """A vector as JSON has it: numbers, or base64 of little-endian f32."""
    return b64encode(vector.tobytes()).decode() if form == "base64" else vector.tolist()
