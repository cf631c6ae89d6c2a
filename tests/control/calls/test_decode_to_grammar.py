"""decode with a matcher: what is refused, and what its command says."""

from __future__ import annotations

from typing import Any

import pytest

from pie_control.calls.fused import decode
from pie_control.calls.fused.matching import Constraint, Matcher
from pie_control.calls.fused.runs import RunCommand
from pie_control.errors import InvalidArgument, InvalidState, NotFound
from pie_control.host_api.limits.pending import weigher
from tests.helpers.refusals import GREEDY, NO_QUEUE, Q, Refusal, check_refused, prepare, refusal


class Given(Matcher):
    """A matcher that has accepted some tokens."""

    def __init__(self, vocabulary_size: int = 259) -> None:
        self.source, self.tokens, self.vocabulary_size = "start: /a+/", [97, 97], vocabulary_size


def arguments(**changed: Any) -> list[Any]:
    given = {"queue": Q, "embed": 2, "sampler": GREEDY, "input": 4, "position": 3, "context": [0, 4], "pages": [0, 4]}
    return list({**given, "steps": 5, "stop": [9], "options": "", "matcher": Given(), "skip": 0, **changed}.values())


def refused(error: type, message: str, **changed: Any) -> Any:
    return refusal(error, message, "decode", *arguments(**changed))


REFUSED = [
    refused(NotFound, NO_QUEUE, queue=9),
    refused(InvalidArgument, "the matcher belongs to a grammar of another model", matcher=Given(100)),
    refused(InvalidState, "a decode run of 15 steps needs 14 free slots, its pages have 13", steps=15),
    refused(InvalidArgument, "unknown field `stops`", options='{"stops": []}'),
]


@pytest.mark.parametrize("wanted", REFUSED)
def test_a_refused_call_changes_nothing(wanted: Refusal) -> None:
    check_refused(wanted)


def test_the_command_says_what_the_matcher_has_accepted() -> None:
    inferlet, handed_on = prepare()
    matcher = Given()
    inferlet.call("decode", *arguments(matcher=matcher, skip=4))
    matcher.tokens.append(97)
    command = handed_on[-1]
    assert isinstance(command, RunCommand)
    assert command.constraint == Constraint("start: /a+/", (97, 97), 4)
    inferlet.call("decode", Q, 0, GREEDY, 6, 3, [0, 4], [1, 1], 2, [], "")
    assert handed_on[-1].constraint is None


@pytest.mark.parametrize(("skip", "least"), [(0, 0), (1, 10), (2, 2), (10, 10), (40, 40)])
def test_how_many_forced_tokens_end_a_run_is_a_fixed_number(skip: int, least: int) -> None:
    inferlet, handed_on = prepare()
    inferlet.call("decode", *arguments(skip=skip))
    assert handed_on[-1].constraint.skip == least


def test_a_grammar_that_waits_is_counted() -> None:
    weigh = weigher(decode.CALL)
    matcher = Given()
    before = weigh(arguments(matcher=matcher)[1:])
    matcher.source = "x" * 10_000
    assert weigh(arguments(matcher=matcher)[1:]) >= before + 9_000
