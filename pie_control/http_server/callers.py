"""For whom a request is served: the tenant whose token it shows, or the default tenant where there is no file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import Scope

from pie_control.errors import Forbidden, Unauthorized
from pie_control.server_api import ServerApi
from pie_control.tenant_api import TenantApi
from pie_control.tenants.accounts import Accounts, TokenGrant
from pie_control.tenants.tenant import DEFAULT_STANDING

from .views import InferletListing

BEARER = "bearer "
HOW = "the header `Authorization: Bearer TOKEN`, or PIE_TOKEN or --token of the command line, shows it"

REMOVED = "the token of this connection is no tenant's any more: ask the operator of the server for another"


@dataclass
class Caller:
    """A tenant: what it can do, its inferlets as JSON, and what it may do beside. One for all of its connections, so
    what the file of tenants says anew holds for those that are open as well."""

    api: TenantApi
    account: TokenGrant
    listing: InferletListing = field(init=False)

    def __post_init__(self) -> None:
        self.listing = InferletListing(self.api)

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
        self._default = Caller(server, TokenGrant(DEFAULT_STANDING, may_load_adapters=True))
        self._known: dict[str, Caller] = {}

    @property
    def ask(self) -> bool:
        """Whether a request needs a token."""
        return self._accounts is not None

    def use(self, accounts: Accounts) -> None:
        """Asks for tokens of these tenants from now on, and gives each what it may by now. What is under way goes on:
        see `HttpServer.use`."""
        self._accounts = accounts
        for account in accounts:
            self._update(account)

    def of(self, headers: Headers) -> Caller:
        """Who sends a request; raises Unauthorized."""
        if self._accounts is None:
            return self._default
        given = headers.get("authorization", "")
        if not given and "x-api-key" in headers:  # as clients of Anthropic's API show it
            given = f"{BEARER}{headers['x-api-key']}"
        if not given.lower().startswith(BEARER):
            raise Unauthorized(f"this server asks for a token, which its operator gives you; {HOW}")
        account = self._accounts.of(given[len(BEARER) :].strip())
        if account is None:
            raise Unauthorized(f"no tenant of this server has this token: ask its operator for one; {HOW}")
        return self._caller(account)

    def objection(self, scope: Scope) -> str:
        """Why a request that was let in may not go on; empty if it may."""
        try:
            self.of(Headers(scope=scope))
        except Unauthorized:
            return REMOVED if scope.get("state", {}).get("caller") else ""
        return ""

    def _caller(self, account: TokenGrant) -> Caller:
        """All tokens of a tenant share one caller, which keeps its blobs."""
        name = account.standing.tenant.name
        if name not in self._known:
            self._known[name] = Caller(self._server.of(account.standing), account)
        return self._known[name]

    def _update(self, account: TokenGrant) -> None:
        known = self._known.get(account.standing.tenant.name)
        if known is not None and known.account != account:
            known.account = account
            known.api.use(account.standing)


async def caller_of(connection: HTTPConnection) -> Caller:  # a coroutine, because FastAPI runs functions on threads
    """Who sends a request, as the guard found out."""
    return cast("Caller", connection.state.caller)


FromTenant = Annotated[Caller, Depends(caller_of)]
"""A route's parameter: who sends the request."""
