"""Inferlets by their ids."""

from __future__ import annotations

import pytest

from pie_control.config import InferletLimits
from pie_control.errors import UnknownName
from pie_control.registry.registry import Registry


@pytest.mark.parametrize("digits", [20, 5000])
def test_an_id_of_more_digits_than_any_is_unknown(digits: int) -> None:
    """Python reads at most 4300."""
    with pytest.raises(UnknownName):
        Registry(InferletLimits(), 100).get("i" + "1" * digits)
