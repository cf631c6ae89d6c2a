"""Children: what waits between them and their parent counts as memory of the family."""

from __future__ import annotations

from typing import Any, cast

from pie_control.config import InferletLimits
from pie_control.inferlets.events import Ended
from pie_control.inferlets.mailbox import EVENT_BYTES, Received
from pie_control.inferlets.relations.children import Child, Kin
from pie_control.inferlets.relations.mail import Letter

LIMITS = InferletLimits(memory_bytes=1000)
NOBODY = cast(Any, None)
TEXT = "x" * (600 - EVENT_BYTES)


def family() -> tuple[Kin, Child, Child]:
    root = Kin(1, LIMITS, None)
    return root, root.ask(NOBODY, LIMITS), root.ask(NOBODY, LIMITS)


def test_messages_that_wait_count_as_memory_until_they_are_received() -> None:
    root, one, other = family()
    one.post(TEXT)
    other.says(TEXT)
    assert (root.family_bytes(), root.is_family, root.over_its_memory()) == (1200, True, root)
    one.arrived(600)
    assert root.over_its_memory() is None
    box = vars(other)["_box"]
    box.was_taken(Letter(Received(1, TEXT), box))
    assert (root.family_bytes(), root.is_family) == (0, False)


def test_messages_of_children_that_end_count_until_the_parent_has_no_handle() -> None:
    root, one, other = family()
    for child in (one, other):
        child.post(TEXT)
        child.says(TEXT)
        child.ended(Ended("finished", inferlet="i2"))
    assert root.family_bytes() == 1200, "what they have said"
    for child in (one, other):
        child.forget()
        child.says(TEXT)
    assert root.family_bytes() == 0
