"""The OpenAPI description says what the server does: schemathesis tries what it allows, and what not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.control.tenants.test_accounts import ALICE, BOB, written
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.live_server import live_server
from tests.helpers.servers import cache_with_guest
from tests.helpers.tiers import corpus

CONFIG = Path(__file__).with_name("schemathesis.toml")
TENANTS = f'[tenants.alice]\ntokens = ["{ALICE}"]\nmay_load_adapters = true\n[tenants.bob]\ntokens = ["{BOB}"]\n'


RUNS = [(kind, examples) for examples in (20, 60) for kind in ("no tenants", "tenants")]


@pytest.mark.parametrize("tried", corpus(RUNS, kind=lambda one: one[0]))
def test_every_answer_is_described(tried: tuple[str, int], guest_cache: Path, tmp_path: Path) -> None:
    tenants, examples = tried[0] == "tenants", tried[1]
    options = {"tenants": str(written(tmp_path, TENANTS))} if tenants else {}
    (tmp_path / "adapters").mkdir()
    with live_server(cache_with_guest(tmp_path, guest_cache), adapter_dir=str(tmp_path / "adapters"), **options) as url:
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run", f"{url}/openapi.json"]
        token = ["--header", f"Authorization: Bearer {ALICE}"] if tenants else []
        count = ["--max-examples", str(examples), "--generation-deterministic"]
        found = subprocess.run(
            [*command, *count, *token],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=10 * HANG_SECONDS,
            check=False,
        )
    assert found.returncode == 0, found.stdout
