"""The file of tenants: who may use the server, by which token, with which share and bounds.

    [tenants.alice]
    tokens = ["hjQ4..."]                     # who shows one of them is alice
    http_allow = ["api.example.com"]         # instead of the server's; [] allows none
    weight = 2.0
    class = "batch"
    max_inferlets = 100
    tokens_per_minute = 60_000               # a budget: see `Budget`

Every key but `tokens` may be left out. The values are those of `Tenant` and `Standing`.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..errors import ConfigError
from .budgets import NO_BUDGET, Budget
from .tenant import ServiceClass, Standing, Tenant

NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
LEAST_TOKEN = 20
"""Characters: what a guess must not find."""
MOST_WEIGHT = 1000.0
BOUNDS = ("max_inferlets", "max_pages", "max_embeds", "max_programs", "max_stored_program_bytes")
BUDGETS = Budget.__struct_fields__
ADVICE = "make one with: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"


class TokenGrant(msgspec.Struct, frozen=True):
    """What a token stands for. `may_load_adapters`: it may load and drop adapters, which all tenants share.
    `may_see_all`: the dashboard shows it what all tenants run."""

    standing: Standing
    may_load_adapters: bool = False
    budget: Budget = NO_BUDGET
    may_see_all: bool = False


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tenant of the file."""

    tokens: list[str]
    weight: float = 1.0
    service_class: Literal["interactive", "batch"] = msgspec.field(default="interactive", name="class")
    http_allow: tuple[str, ...] | None = None
    max_inferlets: int | None = None
    max_pages: int | None = None
    max_embeds: int | None = None
    max_programs: int | None = None
    max_stored_program_bytes: int | None = None
    may_load_adapters: bool = False
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    cpu_seconds_per_hour: int | None = None
    may_see_all: bool = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenants: dict[str, _Entry]


class Accounts:
    """The tenants of a server, by their tokens, of which only digests are kept."""

    def __init__(self, by_digest: Mapping[bytes, TokenGrant]) -> None:
        self._by_digest = by_digest

    def of(self, token: str) -> TokenGrant | None:
        """What this token stands for. The time that it takes says nothing about the tokens that there are."""
        return self._by_digest.get(_digest(token))

    def __iter__(self) -> Iterator[TokenGrant]:
        """What there is, once for each token."""
        return iter(self._by_digest.values())

    @property
    def tenants(self) -> Iterator[Tenant]:
        """Each one, once for each of its tokens."""
        return (account.standing.tenant for account in self)

    @property
    def budgets(self) -> dict[str, Budget]:
        """The budget of each tenant, by its name."""
        return {account.standing.tenant.name: account.budget for account in self}


def read_accounts(path: Path) -> Accounts:
    """Reads the file; raises ConfigError, which never shows a token."""
    entries = _read(path)
    found: dict[bytes, TokenGrant] = {}
    for name, entry in entries.items():
        try:
            account = _account(name, entry)
            for token in entry.tokens:
                _check_token(token)
                if found.setdefault(_digest(token), account) is not account:
                    raise ConfigError("it has a token of another tenant, too: each token is for one tenant")
        except ConfigError as error:
            raise ConfigError(f"{path}: tenant {name}: {error}") from None
    return Accounts(found)


def _read(path: Path) -> Mapping[str, _Entry]:
    try:
        with path.open("rb") as file:
            _check_private(path, os.fstat(file.fileno()).st_mode)
            content: dict[str, Any] = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read the file of tenants {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}") from None
    try:
        tenants = msgspec.convert(content, _File).tenants
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}; each tenant is a table [tenants.NAME] with tokens") from None
    if not tenants:
        raise ConfigError(f"{path} has no tenants, so nobody could use the server: add a table [tenants.NAME]")
    return tenants


def _check_private(path: Path, mode: int) -> None:
    if stat.S_IMODE(mode) & 0o027:
        raise ConfigError(f"others can read {path}, or its group can change it, and it has tokens: chmod 600 {path}")


def _check_token(token: str) -> None:
    if len(token) < LEAST_TOKEN:
        raise ConfigError(f"a token has {len(token)} characters, fewer than {LEAST_TOKEN}: {ADVICE}")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError(f"a token has characters that no header can hold: {ADVICE}")


def _account(name: str, entry: _Entry) -> TokenGrant:
    if not NAME.fullmatch(name):
        raise ConfigError("a name has 1 to 64 letters, digits and . _ -")
    if not entry.tokens:
        raise ConfigError(f"it has no token, so nobody can be this tenant: {ADVICE}")
    if not (math.isfinite(entry.weight) and 0 < entry.weight <= MOST_WEIGHT):
        raise ConfigError(f"weight is more than 0 and at most {MOST_WEIGHT:g}, not {entry.weight}")
    for bound in (*BOUNDS, *BUDGETS):
        if (value := getattr(entry, bound)) is not None and value < 1:
            raise ConfigError(f"{bound} is at least 1, not {value}; leave it out for no bound of its own")
    bounds = {bound: getattr(entry, bound) for bound in BOUNDS}
    tenant = Tenant(name, entry.weight, http_allow=entry.http_allow, **bounds)
    budget = Budget(*(getattr(entry, name) for name in BUDGETS))
    standing = Standing(tenant, ServiceClass[entry.service_class.upper()])
    return TokenGrant(standing, entry.may_load_adapters, budget, entry.may_see_all)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
