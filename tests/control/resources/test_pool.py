from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pie_control.resources.pool import Pool
from tests.helpers.integrity import check_pool


class PoolMachine(RuleBasedStateMachine):
    """Holders take, share and give back; waves complete in order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(12)
        self.held: list[int] = []  # one entry for each reference
        self.resting: list[tuple[int, int]] = []  # (wave, slot)
        self.wave = 0

    @precondition(lambda self: self.pool.free)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        slots = self.pool.take(data.draw(st.integers(1, self.pool.free)))
        assert not set(slots) & {*self.held, *(slot for _, slot in self.resting)}, "handed out twice"
        self.held += slots

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.held))
        self.pool.retain([slot])
        self.held.append(slot)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), at_once=st.booleans())
    def give_back(self, data: st.DataObject, at_once: bool) -> None:
        slot = data.draw(st.sampled_from(self.held))
        self.held.remove(slot)
        self.pool.release([slot], None if at_once else self.wave)
        if slot not in self.held and not at_once:
            self.resting.append((self.wave, slot))

    @rule()
    def complete(self) -> None:
        self.pool.wave_completed(self.wave)
        self.resting = [entry for entry in self.resting if entry[0] > self.wave]
        self.wave += 1

    @invariant()
    def adds_up(self) -> None:
        check_pool(self.pool)
        usage = self.pool.usage()
        assert usage.used == len(set(self.held))
        assert usage.quarantined == len(self.resting)
        assert usage.free + usage.used + usage.quarantined == usage.total


TestPool = PoolMachine.TestCase


def test_giving_back_twice_is_noticed() -> None:
    pool = Pool(2)
    slots = pool.take(1)
    pool.release(slots, None)
    with pytest.raises(AssertionError, match="twice"):
        pool.release(slots, None)


def test_slots_come_back_only_when_their_wave_has_completed() -> None:
    pool = Pool(1)
    pool.release(pool.take(1), 7)
    pool.wave_completed(6)
    assert pool.free == 0
    pool.wave_completed(7)
    assert pool.free == 1
