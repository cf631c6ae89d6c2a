"""Why a request of a served route is not answered, in the words of the API that clients speak."""

from __future__ import annotations

from ..errors import ClientError


class Refused(ClientError):
    """`status`: of HTTP, 400 to 599. `type`, `param` and `code` as in OpenAI's errors; `type` "": the usual one of the
    status. `retry_after`: seconds after which it makes sense to try again."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        type: str = "",
        retry_after: int = 1,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.type = type
        self.retry_after = retry_after
