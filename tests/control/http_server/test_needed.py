"""What a key must allow for each route."""

from __future__ import annotations

from typing import cast

import pytest

from pie_control.config import build_config
from pie_control.gateway.programs import ROUTES
from pie_control.http_server.app import create_app
from pie_control.http_server.callers import Callers
from pie_control.http_server.guard import OPEN_PATHS, needed
from pie_control.server_api import ServerApi
from tests.helpers.fake_server_api import FakeServerApi

NEEDED = {
    "launch": {
        "POST /v1/inferlets",
        "POST /v1/inferlets/{inferlet}/messages",
        "POST /v1/inferlets/{inferlet}/stack",
        "DELETE /v1/inferlets/{inferlet}",
        "GET /v1/inferlets/{inferlet}/events",
        "POST /v1/blobs",
        "DELETE /v1/responses/{response}",
        "POST /v1/responses/{response}/cancel",
        *(f"POST {route}" for route in ROUTES),
    },
    "upload": {"POST /v1/programs", "POST /v1/programs/check", "DELETE /v1/programs/{program}"},
    "adapters": {"POST /v1/adapters", "DELETE /v1/adapters/{name}"},
    None: {
        "GET /v1/inferlets",
        "GET /v1/inferlets/{inferlet}",
        "GET /v1/inferlets/{inferlet}/logs",
        "GET /v1/dashboard",
        "GET /v1/responses/{response}",
        "GET /v1/responses/{response}/input_items",
        "GET /v1/programs",
        "GET /v1/programs/{program}",
        "GET /v1/adapters",
        "GET /v1/models",
        "GET /v1/models/{model}",
        "GET /v1/usage",
        "GET /v1/statistics",
    },
}


def test_each_route_has_its_capability() -> None:
    """A route that is new needs `admin`, as the audit log does, until `needed` and this table say otherwise."""
    api = cast(ServerApi, FakeServerApi())
    app = create_app(api, build_config({}), Callers(api, None), {})
    found: dict[str | None, set[str]] = {}
    routes = app.openapi()["paths"]
    for path, methods in routes.items():
        for method in methods:
            if path not in OPEN_PATHS:
                found.setdefault(needed(method.upper(), path), set()).add(f"{method.upper()} {path}")
    assert found.pop("admin") >= {"GET /v1/audit", "GET /metrics"}
    assert found == NEEDED


@pytest.mark.parametrize("path", ["/v1/inferletsx", "/v2/anything", "/v1/programs-of-others", "/", "/metrics"])
def test_what_is_no_route_needs_admin(path: str) -> None:
    assert needed("POST", path) == "admin"
