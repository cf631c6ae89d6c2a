"""`/v1/programs`: upload programs, list and delete them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from pie_control.errors import UnknownName
from pie_control.programs.store import ProgramInfo

from ..callers import FromTenant
from ..views import find_program
from .failures import failures

BODY = {
    "requestBody": {
        "required": True,
        "description": "The program: Python source in UTF-8, or a WebAssembly component of the world `inferlet`.",
        "content": {
            "text/x-python": {"schema": {}, "example": 'async def main(args):\n    return "hello"\n'},
            "application/wasm": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


def programs_router() -> APIRouter:
    """Routes over the programs of a tenant."""
    router = APIRouter(prefix="/v1/programs", tags=["programs"])

    @router.post("", summary="Upload a program", openapi_extra=BODY, responses=failures(413, 422))
    async def upload(
        request: Request,
        caller: FromTenant,
        name: Annotated[str, Query(description="Its name; `launch` finds the newest program with a name.")] = "",
        file: Annotated[str, Query(description="What its file is called: for lists and tracebacks, no name.")] = "",
    ) -> ProgramInfo:
        """Stores a program under its content hash. Uploading the same bytes again changes nothing but the name.

        If another program of yours had the name, the name stands for this one from now on, and `replaced` is the hash
        of the other one, which is kept. 400 `bad-request`: the name looks like a hash, is longer than 128 characters,
        or has some that cannot be printed. 413 `storage-full`: delete programs first. 422 `bad-program` says what is
        wrong: the line of a syntax error, what a component lacks, or that it takes too long to compile.
        """
        return await caller.api.upload(await request.body(), name, file)

    @router.get("", summary="List programs")
    async def list_programs(caller: FromTenant) -> list[ProgramInfo]:
        """All programs that can be launched."""
        return list(caller.api.programs())

    @router.get("/{program}", summary="Look for a program", responses=failures(404))
    async def get_program(program: str, caller: FromTenant) -> ProgramInfo:
        """The program with this content hash; 404 `unknown-name` if it was not uploaded."""
        found = find_program(caller.api, program)
        if found is None:
            raise UnknownName(f"no program {program!r}: upload it first")
        return found

    @router.delete("/{program:path}", summary="Delete a program", responses=failures(404, 413))
    async def delete_program(program: str, caller: FromTenant) -> ProgramInfo:
        """Deletes a program, given by its content hash, a unique beginning of it, or a name, with all of its names.
        Its inferlets go on; it can no longer be launched. 404 `unknown-name` if there is none."""
        return caller.api.remove_program(program)

    return router
