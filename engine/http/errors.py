"""Errors in the form that OpenAI's clients expect."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

RETRY_AFTER_S = 1
"""Seconds that clients are asked to wait before a retry."""


class ApiError(Exception):
    """An answer that is an error; `param` names the field that is wrong."""

    def __init__(self, status: int, message: str, param: str | None = None, retry: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.retry = retry

    def body(self) -> dict[str, Any]:
        """The error as JSON values; `type` as vLLM names it, after the status."""
        kind = HTTPStatus(self.status).phrase.title().replace(" ", "") + "Error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.status}}

    def response(self) -> Response:
        """The error as an answer."""
        headers = {"retry-after": str(RETRY_AFTER_S)} if self.retry else {}
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["www-authenticate"] = "Bearer"
        return json_response(self.body(), self.status, headers)


def json_response(values: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON values as an answer."""
    return Response(msgspec.json.encode(values), status, headers, "application/json")


def busy(message: str) -> ApiError:
    """503, for temporary conditions."""
    return ApiError(503, message, retry=True)
