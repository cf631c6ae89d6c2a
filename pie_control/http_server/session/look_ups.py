"""Answers to the requests of a session that change nothing."""

from __future__ import annotations

from pie_control.server_api import ServerApi
from pie_control.tenant_api import TenantApi

from .. import messages as wire
from ..views import describe_model, find_program, log_entries


async def look_up(server: ServerApi, api: TenantApi, request: wire.Request) -> object:
    """The answer to a request that changes nothing."""
    match request:
        case wire.ShowInferlet(inferlet=inferlet, stack=stack):
            return await api.look_at(inferlet, stack)
        case wire.Logs(inferlet=inferlet, after=after):
            return log_entries(api, inferlet, after)
        case wire.ShowProgram(program=program):
            return find_program(api, program)
        case wire.ListPrograms():
            return api.programs()
        case wire.Models():
            return [describe_model(model) for model in server.models()]
        case wire.Statistics():
            return server.statistics()
    raise AssertionError(f"{type(request).__name__} is not a look-up")
