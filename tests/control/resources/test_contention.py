from __future__ import annotations

from pie_control.resources.contention import Action, End, FirstComeFirstServed, Holder, Shortage
from pie_control.resources.kinds import EMBEDS, PAGES
from pie_control.tenants.tenant import ServiceClass, Standing

HOLDERS = [Holder(1, 1.0, 10), Holder(3, 3.0, 10), Holder(2, 2.0, 10), Holder(4, 4.0, 0)]


def batch(owner: int, held: int) -> Holder:
    """As old as its number is small."""
    return Holder(owner, float(owner), held, standing=Standing(service_class=ServiceClass.BATCH))


def resolve(missing: int, requester: int, holders: list[Holder]) -> tuple[Action, ...]:
    return FirstComeFirstServed().resolve(Shortage(requester, PAGES, missing, missing, 100), holders)


def owners(missing: int, requester: int, holders: list[Holder]) -> list[int]:
    return [action.owner for action in resolve(missing, requester, holders) if isinstance(action, End)]


def test_the_youngest_yield_until_the_request_fits() -> None:
    assert owners(5, 1, HOLDERS) == [3]
    assert owners(15, 1, HOLDERS) == [3, 2]


def test_the_requester_ends_when_those_who_are_younger_hold_too_little() -> None:
    assert owners(15, 2, HOLDERS) == [2], "that 3 ends as well would help nobody"
    assert owners(5, 4, HOLDERS) == [4]


def test_nobody_is_ended_who_is_not_needed() -> None:
    assert owners(10, 1, [Holder(1, 1.0, 1), Holder(2, 2.0, 10), Holder(3, 3.0, 1)]) == [2]
    assert owners(11, 1, [Holder(1, 1.0, 1), Holder(2, 2.0, 10), Holder(3, 3.0, 1), Holder(4, 4.0, 1)]) == [3, 2]


def test_batch_jobs_yield_to_interactive_inferlets_whatever_their_age() -> None:
    holders = [batch(1, 10), Holder(2, 2.0, 10), Holder(3, 3.0, 10), batch(4, 10)]
    assert owners(5, 3, holders) == [4]
    assert owners(15, 3, holders) == [4, 1]
    assert owners(25, 2, holders) == [4, 1, 3]
    assert owners(25, 3, holders) == [3], "both batch jobs hold too little, and 2 is older"
    (action,) = resolve(5, 3, holders)
    assert isinstance(action, End)
    assert "an interactive inferlet asked for them, and this one is a batch job" in action.message


def test_a_batch_job_never_ends_an_interactive_inferlet() -> None:
    holders = [batch(1, 10), Holder(2, 2.0, 10), batch(3, 10)]
    assert owners(5, 1, holders) == [3]
    assert resolve(15, 1, holders) == ()
    assert resolve(5, 3, holders) == ()
    assert owners(5, 3, [batch(1, 10), Holder(2, 2.0, 0), batch(3, 10)]) == [3], "of its own class, as ever"


def test_of_two_created_at_once_the_larger_number_is_younger() -> None:
    assert owners(5, 1, [Holder(1, 1.0, 9), Holder(2, 1.0, 9), Holder(3, 1.0, 9)]) == [3]


def test_nobody_ends_if_it_does_not_help() -> None:
    assert resolve(5, 9, [Holder(1, 1.0, 0)]) == ()


def test_the_message_says_what_was_missing() -> None:
    (action,) = FirstComeFirstServed().resolve(Shortage(1, EMBEDS, 7, 5, 100), [Holder(1, 1.0, 3)])
    assert isinstance(action, End)
    assert "out of embeds: 7 were asked for and 5 of them are missing in a pool of 100" in action.message
    assert "first come, first served" in action.message
