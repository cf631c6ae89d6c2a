import sys

from inferlet_sdk import Context, embed, inferlet, rerank

FACTS = [
    "Bees make honey from flowers.",
    "Trees give fruit in autumn.",
    "Every hive has one queen.",
    "The sky is blue.",
    "Mia is 7 years old and lives in Oslo.",
    "Rome is a city in Italy.",
]


@inferlet
async def main(
    args,
    question: str = "What do bees make?",
    documents: list[str] = FACTS,
    keep: int = 1,
    embedder: str = "",
    reranker: str = "",
    max_tokens: int = 30,
):
    """Answers a question by those of many documents that are nearest to it."""
    if keep < 0:
        sys.exit("keep: give 0 or more")
    pooling = None if embedder else "mean"  # of a model that was not made for embeddings, the mean tells most
    query, *vectors = await embed([question, *documents], embedder or args.model, pooling=pooling)
    scores = [sum(a * b for a, b in zip(query, vector, strict=True)) for vector in vectors]
    best = ranked(scores, documents)[: keep if not reranker else 4 * keep]
    if reranker:
        best = ranked(await rerank(question, best, reranker), best)[:keep]
    for document in best:
        await args.send(f"{document}\n")
    async with Context(args.model) as ctx:
        ctx.fill_chat("user", " ".join([*best, question]))
        return await ctx.generate_until(max_tokens=max_tokens)


def ranked(scores, documents):
    """The documents, best first."""
    return [document for _, document in sorted(zip(scores, documents, strict=True), reverse=True)]
