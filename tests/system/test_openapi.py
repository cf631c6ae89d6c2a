"""The OpenAPI description says what the server does: schemathesis tries what it allows, and what not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.control.tenants.test_accounts import ALICE, BOB, written
from tests.helpers.live_server import live_server
from tests.helpers.schemathesis import check_answers
from tests.helpers.servers import cache_with_guest
from tests.helpers.tiers import corpus

CONFIG = Path(__file__).with_name("schemathesis.toml")
TENANTS = f'[tenants.alice]\ntokens = ["{ALICE}"]\nmay_load_adapters = true\n[tenants.bob]\ntokens = ["{BOB}"]\n'


EVERY = "examples,coverage,fuzzing,stateful"
RUNS = [("tenants", 3, "fuzzing,stateful"), ("tenants", 40, EVERY), ("no tenants", 10, EVERY)]
"""Without tenants all is the same but who may do what."""


@pytest.mark.parametrize("tried", corpus(RUNS, kind=lambda _: "a server"))
def test_every_answer_is_described(tried: tuple[str, int, str], guest_cache: Path, tmp_path: Path) -> None:
    who, examples, phases = tried
    options = {"tenants": str(written(tmp_path, TENANTS))} if who == "tenants" else {}
    (tmp_path / "adapters").mkdir()
    with live_server(cache_with_guest(tmp_path, guest_cache), adapter_dir=str(tmp_path / "adapters"), **options) as url:
        more = ["--phases", phases]
        more += ["--header", f"Authorization: Bearer {ALICE}"] if who == "tenants" else []
        check_answers(tmp_path, f"{url}/openapi.json", examples, *more, config=CONFIG)
