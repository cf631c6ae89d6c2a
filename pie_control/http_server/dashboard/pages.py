"""The pages of the dashboard, and `/docs`. They load nothing from elsewhere, run no script but the files of this
package, and read the server by its public routes."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

import pie_control.dashboard
from pie_control.dashboard.examples import examples

STATIC = Path(pie_control.dashboard.__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


@dataclass(frozen=True)
class _File:
    content: bytes
    media_type: str
    tag: str


@functools.cache
def _files() -> Mapping[str, _File]:
    """All that is served, by its path below `static`: nothing else can be asked for."""
    found = {}
    for path in STATIC.rglob("*"):
        if path.suffix in TYPES:
            content = path.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            found[path.relative_to(STATIC).as_posix()] = _File(content, TYPES[path.suffix], tag)
    return found


def _answer(request: Request, name: str) -> Response:
    file = _files().get(name)
    if file is None:
        raise HTTPException(404, f"no file {name!r}")
    headers = {**HEADERS, "etag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)


def pages_router() -> APIRouter:
    """The pages and their files."""
    router = APIRouter(include_in_schema=False)

    @router.api_route("/", methods=["GET", "HEAD"])
    async def dashboard(request: Request) -> Response:
        return _answer(request, "index.html")

    @router.api_route("/playground", methods=["GET", "HEAD"])
    async def playground(request: Request) -> Response:
        return _answer(request, "playground.html")

    @router.api_route("/docs", methods=["GET", "HEAD"])
    async def docs(request: Request) -> Response:
        return _answer(request, "docs.html")

    @router.get("/assets/examples.json")
    async def all_examples() -> Response:
        return Response(examples(), headers=HEADERS, media_type="application/json")

    @router.api_route("/assets/{name:path}", methods=["GET", "HEAD"])
    async def asset(request: Request, name: str) -> Response:
        return _answer(request, name)

    return router
