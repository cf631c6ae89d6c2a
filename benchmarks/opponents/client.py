"""A client of servers of completions: requests in parallel, each on a connection that is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from ..serving.client import HttpClient, OpponentError

__all__ = ["CompletionClient", "OpponentError"]

CHECK_SECONDS = 10.0
PATH = "/v1/completions"


class CompletionClient(HttpClient):
    """Raises OpponentError for a server that is none of completions."""

    async def model(self) -> str:
        """The name of the first model that the server has."""
        try:
            found = (await asyncio.wait_for(self.get("/v1/models"), CHECK_SECONDS)).value()
            name = found["data"][0]["id"]
            assert isinstance(name, str)
        except TimeoutError:
            raise OpponentError(f"{self.url} did not answer within {CHECK_SECONDS:g} s: is the server up?") from None
        except (OpponentError, KeyError, IndexError, TypeError, AssertionError) as error:
            wrong = error if isinstance(error, OpponentError) else "GET /v1/models names no model"
            raise OpponentError(
                f"{self.url} is no server of completions ({wrong}): give the address of vLLM, SGLang, llama.cpp's "
                "server or another one that has /v1/completions"
            ) from None
        return name

    async def complete(self, **request: Any) -> dict[str, Any]:
        """The whole answer to a request."""
        answer = _checked((await self.send(self.request(PATH, request))).checked().value(), request)
        if (count := len(answer["choices"])) != (asked := request.get("n", 1)):
            raise OpponentError(f"the server gives {count} choices for n={asked}: measure without what needs that")
        return answer

    async def stream(self, **request: Any) -> AsyncIterator[dict[str, Any]]:
        """The events of an answer, as they come."""
        async for event in self.follow(self.request(PATH, {**request, "stream": True})):
            yield _checked(event, request)


def _checked(answer: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    if answer.get("error"):
        raise OpponentError(f"the server says: {answer['error']}")
    choices = answer.get("choices")
    if not isinstance(choices, list) or not all(map(_is_choice, choices)):
        raise OpponentError(f"the server answers with what is no completion: {str(answer)[:200]}")
    early = [end for one in choices if (end := one.get("finish_reason")) not in (None, "length")]
    if early and request.get("ignore_eos") and "stop" not in request:
        raise OpponentError(
            f"the server ended a text before its {request['max_tokens']} tokens ({early[0]}), though it was asked to "
            "ignore_eos: it would do less than Pie; take one that heeds it, as vLLM does"
        )
    return answer


def _is_choice(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("text"), str)
