import sys
from collections.abc import Sequence

from inferlet_sdk import inferlet, traits

PROMPT = (
    "<|begin|><|user|>Vilma is 9 years old and has a rabbit. Vilma has a friend called Drirbreplou. "
    "Write this as JSON with name, age, pet, friend.<|end|><|assistant|>"
)
PART = 2048  # tokens of a prompt that run together


class Pool:
    """What came behind runs of up to `most` tokens, in the text and in outputs at guesses."""

    def __init__(self, most: int) -> None:
        self.most, self.found = most, dict[tuple[int, ...], int]()

    def add(self, tokens: Sequence[int], following: Sequence[int]) -> None:
        """`following`: what comes behind each of the tokens."""
        for end, token in enumerate(following, 1):
            for size in range(1, min(self.most, end) + 1):
                self.found[tuple(tokens[end - size : end])] = token

    def guess(self, text: Sequence[int], trajectory: Sequence[int], count: int) -> list[int]:
        """Tokens that may come behind a text: by the pool, else the outputs at the last guesses."""
        tokens = list(text)
        for output in [*trajectory, *[text[-1]] * count][:count]:
            runs = (tuple(tokens[-size:]) for size in range(min(self.most, len(tokens)), 0, -1))
            tokens.append(next((self.found[run] for run in runs if run in self.found), output))
        return tokens[len(text) :]


@inferlet
async def main(args, prompt: str = PROMPT, max_tokens: int = 80, length: int = 16, most: int = 3):
    """Goes on with a prompt as greedy decoding does: `length` guessed tokens run in one forward, those that agree with
    its outputs stay, and the outputs behind them are the next guesses (Jacobi decoding). `most` is the longest run of
    tokens that a pool knows the next token of (lookahead decoding); 0: no pool."""
    if not prompt or max_tokens < 0 or length < 0:
        sys.exit("give a prompt, and a max_tokens and a length of 0 or more")
    queue, model = traits.create_queue(args.model), traits.get_model_info(args.model)
    text = traits.tokenize(queue, prompt)
    start = len(text)
    if start + max_tokens + length > model.max_context:
        sys.exit(f"the prompt, max_tokens and length are more than the {model.max_context} tokens of {args.model}")
    pages = traits.alloc_kvpage(queue, -(-(start + max_tokens + length) // model.page_size))
    inputs, outputs = traits.alloc_emb(queue, max(min(start, PART), length + 1)), traits.alloc_emb(queue, length + 1)
    pool, run, forwards, draft, ended = Pool(most), 0, 0, list[int](), False
    pool.add(text, text[1:])
    while start - run > PART:
        traits.embed_txt(queue, text[run : run + PART], range(run, run + PART), inputs[:PART])
        traits.forward(queue, pages, inputs[:PART], pages, outputs[:1])
        run, forwards = run + PART, forwards + 1
    while not ended:
        given = [*text[run:], *draft]
        used, read = inputs[: len(given)], outputs[: len(draft) + 1]
        traits.embed_txt(queue, given, range(run, run + len(given)), used)
        traits.forward(queue, pages, used, pages, read)
        chosen = [dist.max_index() for dist in await traits.get_next_dists(queue, read, k=1)]
        forwards += 1
        right = next((place for place, token in enumerate(draft) if token != chosen[place]), len(draft))
        pool.add(given[-len(chosen) :], chosen)
        run = len(text) + right
        for token in chosen[: right + 1]:
            ended = ended or token in model.stop_tokens or len(text) == start + max_tokens
            text += [] if ended else [token]
        traits.trim_kvpage(queue, pages, run)
        draft = pool.guess(text, chosen[right + 1 :], length)
    await args.send(traits.detokenize(queue, text[start:]) + "\n")
    return {"tokens": text[start:], "forwards": forwards}
