"""The count of inferlets of one client, whatever order launches and ends come in."""

from __future__ import annotations

import contextlib
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.datastructures import Address

from pie_control.errors import Overloaded
from pie_control.http_server import launches as module
from pie_control.http_server.launches import Launches
from pie_control.registry.entry import Entry


class Played:
    """An inferlet that the test ends."""

    ended: float | None = None


OVERTAKEN = ("begin", "begin", "succeed", "end", "begin", "succeed", "begin")
"""The ended one is forgotten while another still starts."""


@example([(step, 0, 0) for step in OVERTAKEN])
@given(st.lists(st.tuples(st.sampled_from(["begin", "succeed", "fail", "end"]), st.integers(0, 1), st.integers(0, 5))))
def test_no_client_ever_has_more_than_it_may(steps: list[tuple[str, int, int]]) -> None:
    most = 2
    launches = Launches(most)
    starting: tuple[list[contextlib.ExitStack], ...] = ([], [])
    running: tuple[list[Played], ...] = ([], [])
    ended: list[Played] = []  # somebody still looks at them
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_ADDRESSES", 2)
        for step, who, which in steps:
            address = Address(f"192.0.2.{who}", 1)
            if step == "begin":
                stack = contextlib.ExitStack()
                has_room = len(starting[who]) + len(running[who]) < most
                try:
                    launched = stack.enter_context(launches.launching(address))
                except Overloaded:
                    assert not has_room
                    continue
                assert has_room
                stack.launched = launched  # type: ignore[attr-defined]
                starting[who].append(stack)
            elif step in ("succeed", "fail") and starting[who]:
                stack = starting[who].pop(which % len(starting[who]))
                if step == "succeed":
                    running[who].append(Played())
                    stack.launched(cast(Entry, running[who][-1]))  # type: ignore[attr-defined]
                stack.close()
            elif step == "end" and running[who]:
                ended.append(running[who].pop(which % len(running[who])))
                ended[-1].ended = 1.0
