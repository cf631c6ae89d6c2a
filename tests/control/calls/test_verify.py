from __future__ import annotations

from collections.abc import Sequence

import pytest

from pie_control.calls.fused.verify import Verified
from pie_control.calls.sampler import Sampler, SamplingParams, make_bias
from pie_control.calls.values import Token
from pie_control.errors import InvalidArgument, InvalidState, NotFound, WorkerError
from pie_inference.protocol import Verify
from tests.helpers.refusals import (
    GREEDY,
    HOLDS_AN_INPUT,
    NO_QUEUE,
    OTHER_QUEUE,
    Q,
    Refusal,
    check_refused,
    prepare,
    refusal,
)
from tests.helpers.scheduling import Inferlet, World, by_kind, greedy

OUTSIDE = Sampler(SamplingParams(temperature=0), 0, make_bias([(300, 1.0)]))
PENALTIES = Sampler(SamplingParams(frequency=0.5), 0)

REFUSED = [
    refusal(InvalidState, HOLDS_AN_INPUT, "verify", Q, [2, 2], [1], GREEDY),
    refusal(NotFound, NO_QUEUE, "verify", 9, [0, 2], [1], GREEDY),
    refusal(
        InvalidArgument,
        "verify got 2 embeds and 2 draft tokens; one embed more is needed",
        "verify",
        Q,
        [0, 2],
        [1, 2],
        GREEDY,
    ),
    refusal(InvalidArgument, "verify got 2 embeds and 0 draft tokens", "verify", Q, [0, 2], [], GREEDY),
    refusal(InvalidArgument, "verify got 0 embeds and 0 draft tokens", "verify", Q, [], [], GREEDY),
    refusal(InvalidArgument, "6 draft tokens are more than 5: verify fewer", "verify", Q, [0, 7], [1] * 6, GREEDY),
    refusal(InvalidArgument, "verify takes no penalties", "verify", Q, [0, 2], [1], PENALTIES),
    refusal(InvalidArgument, "logit_bias names token 300", "verify", Q, [0, 2], [1], OUTSIDE),
    refusal(InvalidArgument, "token 300 is outside of the vocabulary", "verify", Q, [0, 2], [300], GREEDY),
    refusal(InvalidArgument, "token -1 is outside", "verify", Q, [0, 2], [-1], GREEDY),
    refusal(InvalidState, "embed 4 was never filled", "verify", Q, [3, 2], [1], GREEDY),
    refusal(NotFound, "embed 8 is not allocated", "verify", Q, [7, 2], [1], GREEDY),
    refusal(InvalidArgument, "embed 0 is named twice", "verify", Q, [0, 1, 0, 1], [1], GREEDY),
]


@pytest.mark.parametrize("wanted", REFUSED)
def test_a_refused_call_names_the_number_and_changes_nothing(wanted: Refusal) -> None:
    check_refused(wanted)


def test_a_draft_has_a_number_for_each_of_its_rows() -> None:
    inferlet, handed_on = prepare()
    sampler, again = (Sampler(SamplingParams(), 5) for _ in range(2))
    inferlet.call("verify", Q, [2, 1, 0, 2], [7, 8], sampler)
    command = handed_on[-1]
    assert (command.outputs, command.draft, command.after) == (((2, 3), (0, 2)), (7, 8), 0)
    assert command.uniform == tuple(again.draw() for _ in range(3))


def test_embeds_that_another_queue_writes_are_waited_for() -> None:
    inferlet, handed_on = prepare()
    forward = handed_on[-2].seq
    inferlet.call("verify", OTHER_QUEUE, [0, 2], [1], GREEDY)
    assert handed_on[-1].after == forward


@pytest.mark.parametrize(
    ("answer", "used"), [(Verified(0, 9), 1), (Verified(2, 9), 3), (WorkerError("it did not run"), 0)]
)
def test_numbers_of_rows_behind_the_first_that_differs_are_drawn_again(answer: object, used: int) -> None:
    inferlet, _ = prepare()
    sampler, again = (Sampler(SamplingParams(), 5) for _ in range(2))
    future = inferlet.call("verify", Q, [0, 3], [7, 8], sampler)
    inferlet.space.answered(future, answer)
    for _ in range(used):
        again.draw()
    assert sampler.draw() == again.draw()


def test_drafts_share_a_batch_up_to_the_largest_number_of_rows() -> None:
    world = World(max_batch_rows=7)
    inferlets = [world.open(1, 64) for _ in range(3)]
    for inferlet in inferlets:
        inferlet.embed(0, 3)
        inferlet.call("verify", Q, [inferlet.embeds, 3], [5, 6], greedy())
    batches = [by_kind(wave)[Verify] for wave in world.drain() if Verify in by_kind(wave)]
    assert [batch.indptr.tolist() for batch in batches] == [[0, 3, 6], [0, 3]]
    assert batches[0].draft.tolist() == [5, 6, -1, 5, 6, -1]
    assert all(isinstance(inferlet.answers[1], Verified) for inferlet in inferlets)


# ---- the same tokens with and without speculation ----


class Generation:
    """Tokens of one inferlet, chosen at random by a seed. Embed 63 has the output of the last token."""

    def __init__(self, seed: int) -> None:
        self.world = World()
        self.inferlet: Inferlet = self.world.open(16, 64)
        self.sampler = Sampler(SamplingParams(temperature=1.0, top_k=4), seed)
        self.tokens: list[int] = [65]
        self.kept = 0  # tokens in pages

    def run(self, tokens: Sequence[int]) -> None:
        """Runs tokens behind those that are kept; output n goes to embed 20 + n."""
        one, count = self.inferlet, len(tokens)
        one.embed(self.kept, count, tokens=tokens)
        pages = [one.pages, one.num_pages]
        one.call("forward", Q, pages, [one.embeds, count], pages, [one.embeds + 20, count])
        self.kept += count

    def step(self) -> None:
        """One token."""
        self.run(self.tokens[-1:])
        future = self.inferlet.call("sample", Q, self.inferlet.embeds + 20, self.sampler)
        self.world.drain()
        answer = self.inferlet.answers[future]
        assert isinstance(answer, Token)
        self.tokens.append(answer.token)

    def speculate(self, draft: Sequence[int]) -> int:
        """As many as are right, and one more."""
        one = self.inferlet
        before = self.kept
        self.run([self.tokens[-1], *draft])
        future = one.call("verify", Q, [one.embeds + 20, len(draft) + 1], draft, self.sampler)
        self.world.drain()
        answer = one.answers[future]
        assert isinstance(answer, Verified)
        self.tokens += [*draft[: answer.accepted], answer.token]
        self.kept = before + 1 + answer.accepted
        one.call("trim_kvpage", Q, [one.pages, one.num_pages], self.kept)
        return answer.accepted


@pytest.mark.parametrize("seed", range(6))
def test_a_seed_gives_the_same_tokens_with_and_without_speculation(seed: int) -> None:
    plain = Generation(seed)
    while len(plain.tokens) < 20:
        plain.step()
    speculative = Generation(seed)
    accepted: list[int] = []
    right = [3, 0, 2, 1, 4, 0, 0, 5]
    while len(speculative.tokens) < 12:
        if len(accepted) % 3 == 2:
            speculative.step()
        expected = plain.tokens[len(speculative.tokens) :][: right[len(accepted)]]
        wrong = (plain.tokens[len(speculative.tokens) + len(expected)] + 1) % 256
        accepted.append(speculative.speculate([*expected, wrong, 7][:5]))
    assert speculative.tokens == plain.tokens[: len(speculative.tokens)]
    assert accepted == right[: len(accepted)]
