from __future__ import annotations

import pytest

from pie_control.errors import QuotaExceeded
from pie_control.resources.kinds import EMBEDS, PAGES
from pie_control.resources.quotas import Quota, check_quota


def test_each_kind_of_memory_has_its_limit() -> None:
    quota = Quota(pages=3, embeds=5)
    assert (quota.limit(PAGES), quota.limit(EMBEDS)) == (3, 5)


def test_a_limit_may_be_reached_but_not_passed() -> None:
    check_quota(3, 2, 5, "embeds", "free some first")
    with pytest.raises(QuotaExceeded, match="3 embeds held and 3 more asked for, the limit is 5; free some first"):
        check_quota(3, 3, 5, "embeds", "free some first")
