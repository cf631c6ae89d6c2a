"""Serves POST /v1/rerank: a query and documents in, the documents by how well they answer it out."""

from typing import Any

from inferlet_sdk import Args, TooLong, inferlet
from inferlet_sdk.retrieval.reranking import INSTRUCTION, prompts_of, score_prompts
from inferlet_sdk.served import Fields, Place, check_model, served, too_long

MOST_DOCUMENTS = 2048


@inferlet(reuse=True)
@served
async def main(args: Args) -> dict[str, Any]:
    place, fields = Place.of_launch(), Fields.of_launch()
    check_model(place)
    fields.check_priority()
    fields.allow_only("stream", (False,), "scores come all at once")
    query = fields.text("query")
    if not query:
        raise fields.wrong("query", "a text")
    documents = documents_of(fields)
    first = fields.whole("top_n", least=1, default=len(documents))
    has_texts = fields.flag("return_documents", default=True)
    try:
        prompts = prompts_of(place.model, query, documents, fields.text("instruction", INSTRUCTION))
    except TooLong as error:
        raise too_long(error.message, "documents") from None
    scores = await score_prompts(place.model, prompts, place.adapter)
    order = sorted(range(len(documents)), key=lambda number: -scores[number])[:first]
    count = sum(map(len, prompts))
    return {
        "id": place.request_id,
        "model": fields.text("model", place.model),
        "results": [
            {"index": number, "relevance_score": scores[number]}
            | ({"document": {"text": documents[number]}} if has_texts else {})
            for number in order
        ],
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }


def documents_of(fields: Fields) -> list[str]:
    """The texts of `documents`: each is a text, or an object with one."""
    given = fields.get("documents")
    if not isinstance(given, list) or not 0 < len(given) <= MOST_DOCUMENTS:
        raise fields.wrong("documents", f"a list of 1 to {MOST_DOCUMENTS} texts")
    texts: list[Any] = [one.get("text") if isinstance(one, dict) else one for one in given]
    if not all(isinstance(one, str) for one in texts):
        raise fields.wrong("documents", 'a list of texts, or of objects like {"text": "..."}')
    return texts
