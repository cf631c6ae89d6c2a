"""The file of tenants: what it may say, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pie_control.config import build_config, find_accounts
from pie_control.errors import ConfigError
from pie_control.tenants.accounts import read_accounts
from pie_control.tenants.budgets import Budget
from pie_control.tenants.tenant import ServiceClass, Standing, Tenant

ALICE, BOB, NEW = "alice-" + "a" * 20, "bob-" + "b" * 20, "new-" + "c" * 20


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "tenants.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_token_stands_for_its_tenant(tmp_path: Path) -> None:
    text = f"""
        [tenants.alice]
        tokens = ["{ALICE}", "{NEW}"]
        weight = 2.5
        class = "batch"
        http_allow = ["api.example.com", "10.0.0.0/8:8080"]
        max_inferlets = 3
        max_pages = 100
        max_embeds = 200
        max_programs = 7
        max_stored_program_bytes = 1_000_000
        cpu_seconds_per_hour = 60
        may_load_adapters = true

        [tenants.bob]
        tokens = ["{BOB}"]
    """
    accounts = find_accounts(str(written(tmp_path, text)))
    alice, bob = accounts.of(ALICE), accounts.of(BOB)
    assert alice is not None
    assert bob is not None
    assert alice.standing == Standing(
        Tenant("alice", 2.5, 100, 200, ("api.example.com", "10.0.0.0/8:8080"), 3, 7, 1_000_000), ServiceClass.BATCH
    )
    assert alice.budget == Budget(cpu_seconds_per_hour=60)
    assert alice.may_load_adapters
    assert accounts.of(NEW) is alice
    assert bob.standing == Standing(Tenant("bob"))
    assert not bob.may_load_adapters
    for unknown in ("", "alice", ALICE[:-1], ALICE + "a", f" {ALICE}", "\udcff" * 30):
        assert accounts.of(unknown) is None
    assert ALICE not in repr(vars(accounts))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tenants = 3", "Expected `object`, got `int`.*each tenant is a table"),
        ("", "missing required field `tenants`.*each tenant is a table"),
        ("[tenants]", "has no tenants, so nobody could use the server"),
        ("[tenants.a", "is no TOML"),
        ("[tenants.a]", "missing required field `tokens`"),
        ("[tenants.a]\ntokens = []", "tenant a: it has no token.*secrets"),
        ('[tenants.a]\ntokens = ["short"]', "tenant a: a token has 5 characters, fewer than 20.*secrets"),
        (f'[tenants.a]\ntokens = ["{ALICE} x"]', "characters that no header can hold"),
        (f'[tenants.a]\ntokens = ["{ALICE}é"]', "characters that no header can hold"),
        (f'[tenants."a b"]\ntokens = ["{ALICE}"]', "a name has 1 to 64 letters"),
        (f'[tenants.a]\ntokens = ["{ALICE}"]\nhttp_alow = []', "unknown field `http_alow`"),
        (f'[tenants.a]\ntokens = ["{ALICE}"]\nclass = "vip"', "Invalid enum value 'vip'"),
        (f'[tenants.a]\ntokens = ["{ALICE}"]\nweight = 0', "weight is more than 0"),
        (f'[tenants.a]\ntokens = ["{ALICE}"]\nweight = nan', "weight is more than 0"),
        (f'[tenants.a]\ntokens = ["{ALICE}"]\nmax_inferlets = 0', "max_inferlets is at least 1, not 0"),
        (f'[tenants.a]\ntokens = ["{ALICE}"]\nhttp_allow = ["http://x/"]', "tenant a: .*http://x/"),
        (
            f'[tenants.a]\ntokens = ["{ALICE}"]\n[tenants.b]\ntokens = ["{ALICE}"]',
            "tenant b: it has a token of another",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_what_to_do(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        find_accounts(str(written(tmp_path, text)))
    assert "tenants.toml" in str(caught.value)
    assert ALICE not in str(caught.value)


def test_the_file_is_the_operators_own(tmp_path: Path) -> None:
    text = f'[tenants.a]\ntokens = ["{ALICE}"]'
    for mode in (0o604, 0o620, 0o666):
        with pytest.raises(ConfigError, match="chmod 600"):
            read_accounts(written(tmp_path, text, mode))
    assert (
        read_accounts(written(tmp_path, text, 0o640)).of(ALICE) is not None
    )  # a group that may read it, as of secrets
    with pytest.raises(ConfigError, match=r"cannot read the file of tenants .*No such file"):
        read_accounts(tmp_path / "gone.toml")
    with pytest.raises(ConfigError, match=r"cannot read the file of tenants .*directory"):
        read_accounts(tmp_path)


def test_the_setting_reads_it(tmp_path: Path) -> None:
    path = written(tmp_path, f'[tenants.a]\ntokens = ["{ALICE}"]')
    accounts = build_config({"tenants": str(path)}).resolved().accounts
    assert accounts is not None
    assert accounts.of(ALICE) is not None
    assert build_config({}).resolved().accounts is None
