"""How well documents answer a query, by a model that says yes or no (as Qwen3-Reranker does)."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from inferlet_sdk import traits
from inferlet_sdk.errors import TooLong
from inferlet_sdk.retrieval.together import each, pages_of
from inferlet_sdk.sequences.queues import queues_of
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.texts import common_beginning
from inferlet_sdk.traits.arguments import text as checked_text
from inferlet_sdk.traits.arguments import texts

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
BEGIN = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
END = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


async def rerank(
    query: str,
    documents: Sequence[str],
    model: str | None = None,
    *,
    instruction: str = INSTRUCTION,
    adapter: str | None = None,
) -> list[float]:
    """How well each document answers the query: the probability of "yes" against that of "no" behind the prompt of
    Qwen3-Reranker. What the prompts begin with together is run once. Special tokens in texts are plain text."""
    name = model if model is not None else traits.available_models()[0]
    return await score_prompts(name, prompts_of(name, query, documents, instruction), adapter)


def prompts_of(model: str, query: str, documents: Sequence[str], instruction: str = INSTRUCTION) -> list[list[int]]:
    """The tokens of the prompt for each document. Raises TooLong for one that the model's context does not hold."""
    queues = queues_of(model)
    front = f"<Instruct>: {checked_text(instruction, 'instruction')}\n<Query>: {checked_text(query, 'query')}\n"
    prompts = []
    with queues.some() as queue:
        begin, end = (traits.tokenize(queue, text) for text in (BEGIN, END))
        for place, document in enumerate(texts(documents, "documents")):
            content = traits.tokenize(queue, f"{front}<Document>: {document}", special_tokens=False)
            prompts.append([*begin, *content, *end])
            if len(prompts[-1]) > queues.info.max_context:
                raise TooLong(
                    f"documents[{place}]: its prompt of {len(prompts[-1])} tokens is longer than the context of "
                    f"{queues.info.max_context}"
                )
    return prompts


async def score_prompts(model: str, prompts: Sequence[list[int]], adapter: str | None = None) -> list[float]:
    """The probability of "yes" against that of "no" behind each prompt."""
    if not prompts:
        return []
    queues = queues_of(model)
    with queues.some() as queue:
        answers = [traits.tokenize(queue, word)[0] for word in ("yes", "no")]
    trunk = TokenSequence(queues, adapter=adapter or "")
    common = min(common_beginning(prompts), min(map(len, prompts)) - 1)  # each has a token of its own

    async def score(prompt: Sequence[int]) -> float:
        branch = trunk.fork()
        branch.tokens += prompt[common:]
        try:
            with branch:
                branch.flush()
                yes, no = await traits.get_logprobs(branch.queue, branch.output_embed, answers)
        finally:
            branch.close()
        return 1 / (1 + exp(min(no - yes, 700.0)))

    trunk.tokens += prompts[0][:common]
    try:
        return await each(score, prompts, lambda prompt: pages_of(queues.info, prompt), queues)
    finally:
        trunk.close()
