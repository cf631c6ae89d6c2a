"""What a policy is asked with: how things stand, between two waves."""

from __future__ import annotations

from operator import add

from ..answers import Wave
from ..backlog import Backlog
from ..guests import Guests
from ..policies import DispatchState
from ..statistics import LinearFit


def dispatch_state(
    backlog: Backlog,
    guests: Guests,
    oldest: Wave | None,
    in_flight: int,
    times: LinearFit,
    wave_seconds: float,
    answered: float,
) -> DispatchState:
    """`oldest`: of the waves in flight, which are so many. `times`, `wave_seconds`: what waves have taken lately;
    `answered`: when the last one was."""
    in_hands, ready = guests.in_hands, backlog.all_ready()
    everybody = sum(backlog.ready) + sum(in_hands) + sum(guests.in_flight)
    next_back = guests.next
    return DispatchState(
        ready=tuple(ready),
        ahead=backlog.ready_behind(oldest.number) if oldest else (),
        expected=tuple(map(add, in_hands, guests.in_flight)),
        hands=sum(in_hands),
        commands=backlog.commands - backlog.local_commands + sum(ready) - sum(backlog.ready),
        since=backlog.since,
        in_flight=in_flight,
        ends=max(oldest.sent, answered) + times.at(oldest.tokens) if oldest else 0.0,
        wave_seconds=wave_seconds,
        fixed_seconds=times.fixed if times.known else wave_seconds,
        only_size=times.only,
        each_seconds=times.each,
        guest_seconds=guests.seconds.at(everybody),
        half_seconds=guests.seconds.at(everybody / 2),
        told=next_back.since if next_back else 0.0,
        back=next_back.since + guests.seconds.at(next_back.count) if next_back else 0.0,
        stragglers=next_back is not None and next_back.is_back,
    )
