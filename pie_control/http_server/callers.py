"""For whom a request is served: the tenant whose token it shows, or the default tenant where there is no file."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, cast

import msgspec
from fastapi import Depends
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import Scope

from pie_control.durable.keys import KeyRecord
from pie_control.errors import Forbidden, Unauthorized
from pie_control.server_api import ServerApi
from pie_control.tenant_api import TenantApi
from pie_control.tenants.accounts import Accounts, TokenGrant
from pie_control.tenants.keys import CAPABILITIES, PREFIX, digest_of, is_key
from pie_control.tenants.tenant import DEFAULT_STANDING

from .views import InferletListing

BEARER = "bearer "
ALL = frozenset(CAPABILITIES)
HOW = "the header `Authorization: Bearer TOKEN`, or PIE_TOKEN or --token of the command line, shows it"


@dataclass
class Caller:
    """A tenant: what it can do, its inferlets as JSON, and what it may do beside. `may`: what its key allows of that.
    One for all of its connections that may the same, so what the file of tenants says anew holds for those that are
    open as well."""

    api: TenantApi
    account: TokenGrant
    may: frozenset[str] = ALL
    listing: InferletListing = field(init=False)

    def __post_init__(self) -> None:
        self.listing = InferletListing(self.api)

    def check(self, capability: str | None) -> None:
        """Raises Forbidden if its key does not allow what it asks for; None needs no capability."""
        if capability is not None and capability not in self.may:
            self.api.note("refused", f"needs {capability}")
            may = ", ".join(sorted(self.may)) or "nothing but look"
            raise Forbidden(f"this key may not do that, which needs {capability!r}; it may: {may}. Ask for another key")

    @property
    def sees_all(self) -> bool:
        """Whether the dashboard shows it what all tenants run: its key may `admin`, and its tenant may see that."""
        return "admin" in self.may and self.account.may_see_all

    def check_sees_all(self) -> None:
        """Raises Forbidden unless it may see what all tenants do."""
        if not self.sees_all:
            raise Forbidden(
                "this tells of all tenants: it takes a key that may `admin`, of a tenant with `may_see_all = true` in "
                "the file of tenants: ask the operator"
            )

    def statistics(self, server: ServerApi) -> dict[str, object]:
        """Numbers of the whole server where its key may `admin`, else of its tenant's inferlets and budgets; and what
        the inferlets of each key hold."""
        found = msgspec.to_builtins(server.statistics()) if "admin" in self.may else self._own_statistics()
        return {**found, "keys": self.api.held_by_keys(of_all=self.sees_all)}

    def _own_statistics(self) -> dict[str, object]:
        some = self.api.inferlets()
        return {
            "tenant": self.account.standing.tenant.name,
            "inferlets": Counter(one.status for one in some),
            "pages": sum(one.pages for one in some),
            "embeds": sum(one.embeds for one in some),
            "cpu_seconds": sum(one.cpu_seconds for one in some),
            "budgets": {what: one._asdict() for what, one in self.api.meter.limits(time.monotonic()).items()},
        }

    def check_may_load_adapters(self) -> None:
        """Raises Forbidden."""
        if not self.account.may_load_adapters:
            name = self.account.standing.tenant.name
            raise Forbidden(
                f"tenant {name} may not load or drop adapters, which all tenants share: "
                "the operator allows it by `may_load_adapters = true` in the file of tenants"
            )


class Callers:
    """All tenants of the server. Belongs to the thread of its event loop."""

    def __init__(self, server: ServerApi, accounts: Accounts | None) -> None:
        """`accounts`: None means that there are no tokens, and everybody is the default tenant."""
        self._server = server
        self._accounts = accounts
        self._default = Caller(server, TokenGrant(DEFAULT_STANDING, may_load_adapters=True, may_see_all=True))
        self._apis: dict[str, TenantApi] = {}
        self._known: dict[tuple[str, frozenset[str], str], Caller] = {}  # by tenant, capabilities, key
        self._tell()

    @property
    def ask(self) -> bool:
        """Whether a request needs a token."""
        keys = self._server.keys
        return self._accounts is not None or (keys is not None and keys.exist)

    def use(self, accounts: Accounts) -> None:
        """Asks for tokens of these tenants from now on, and gives each what it may by now. What is under way goes on:
        see `HttpServer.use`."""
        self._accounts = accounts
        self._server.meters.use(accounts.budgets)
        for account in accounts:
            self._update(account)
        self._tell()

    def _tell(self) -> None:
        tenants = (DEFAULT_STANDING.tenant,) if self._accounts is None else self._accounts.tenants
        self._server.tell_tenants({tenant.name for tenant in tenants})

    def of(self, headers: Headers) -> Caller:
        """Who sends a request; raises Unauthorized."""
        if not self.ask:
            return self._default
        given = headers.get("authorization", "")
        if not given and "x-api-key" in headers:  # as clients of Anthropic's API show it
            given = f"{BEARER}{headers['x-api-key']}"
        if not given.lower().startswith(BEARER):
            raise Unauthorized(f"this server asks for a token or key, which its operator gives you; {HOW}")
        token = given[len(BEARER) :].strip()
        account = self._accounts.of(token) if self._accounts is not None else None
        if account is not None:
            return self._caller(account, ALL)
        if token.startswith(PREFIX):
            return self._of_key(token)
        raise Unauthorized(f"no tenant of this server has this token: ask its operator for one; {HOW}")

    def _of_key(self, key: str) -> Caller:
        if not is_key(key):
            raise Unauthorized("this is no whole key: it was cut off, or a letter was changed")
        return self._of_record(self._server.keys.find(digest_of(key)) if self._server.keys is not None else None)

    def _of_record(self, found: KeyRecord | None) -> Caller:
        if found is None:
            raise Unauthorized("this server does not know this key: it is of another one; ask the operator for a key")
        if not found.is_valid(time.time()):
            how = "has expired" if found.revoked is None else "was revoked"
            raise Unauthorized(f"this key {how}: ask the operator of the server for another")
        account = self._account_of(found.tenant)
        if account is None:
            raise Unauthorized(f"tenant {found.tenant} of this key is not in the server's file of tenants (--tenants)")
        self._server.meters.use_key(found.id, found.budget)
        return self._caller(account, frozenset(found.may), found.id, found.max_inferlets)

    def _account_of(self, tenant: str) -> TokenGrant | None:
        if self._accounts is not None:
            return next((one for one in self._accounts if one.standing.tenant.name == tenant), None)
        return self._default.account if tenant == DEFAULT_STANDING.tenant.name else None

    def knocked(self, scope: Scope) -> None:
        """A request was refused that shows no token or key, or none that counts."""
        address = (scope.get("client") or ("an unknown address",))[0]
        self._server.audit.note("", "", "refused", f"unauthorized, from {address}")

    def api_of(self, tenant: str, key: str) -> TenantApi | None:
        """What a tenant can do, or who has the key of it with this id; None: it is not known any more, or not valid."""
        if not self.ask:
            return self._default.api if tenant == DEFAULT_STANDING.tenant.name else None
        if key and self._server.keys is not None:
            with contextlib.suppress(Unauthorized):
                return self._of_record(self._server.keys.named(key)).api
            return None
        account = self._account_of(tenant)
        return self._caller(account, ALL).api if account is not None else None

    def objection(self, scope: Scope) -> str:
        """Why a request that was let in may not go on; empty if it may."""
        try:
            self.of(Headers(scope=scope))
        except Unauthorized as refusal:
            return str(refusal).partition(";")[0] if scope.get("state", {}).get("caller") else ""
        return ""

    def _caller(self, account: TokenGrant, may: frozenset[str], key: str = "", most: int | None = None) -> Caller:
        """All tokens and keys of a tenant share its blobs."""
        name = account.standing.tenant.name
        if (name, may, key) not in self._known:
            if name not in self._apis:
                self._apis[name] = self._server.of(account.standing)
            api = self._apis[name].of_key(key, "http" in may, most) if key else self._apis[name]
            self._known[name, may, key] = Caller(api, account, may)
        return self._known[name, may, key]

    def forget_keys(self) -> None:
        """Drops what is known of keys that are not valid any more."""
        valid = self._server.keys.valid(time.time()) if self._server.keys is not None else set()
        self._known = {known: one for known, one in self._known.items() if not known[2] or known[2] in valid}

    def _update(self, account: TokenGrant) -> None:
        if api := self._apis.get(account.standing.tenant.name):
            api.use(account.standing)
        for (name, _, _), known in self._known.items():
            if name == account.standing.tenant.name and known.account != account:
                known.account = account
                known.api.use(account.standing)


async def caller_of(connection: HTTPConnection) -> Caller:  # a coroutine, because FastAPI runs functions on threads
    """Who sends a request, as the guard found out."""
    return cast("Caller", connection.state.caller)


FromTenant = Annotated[Caller, Depends(caller_of)]
"""A route's parameter: who sends the request."""
