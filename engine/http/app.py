"""The routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from schedtop.engine import __version__
from schedtop.engine.contract.commands import SetKnobs
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.http.access import Guard, check_token, read_body
from schedtop.engine.http.errors import ApiError, busy, json_response
from schedtop.engine.http.generation.generate import generation
from schedtop.engine.http.generation.requests import (
    ChatRequest,
    CompletionRequest,
    KnobsRequest,
    TokenizeRequest,
    read,
)
from schedtop.engine.http.link import NotTakenError
from schedtop.engine.http.pages.knobs import knobs_page
from schedtop.engine.http.server_state import ServerState
from schedtop.engine.http.settings import HttpSettings
from schedtop.engine.http.text import message_text
from schedtop.engine.metrics.page_text import CONTENT_TYPE
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


def make_app(state: ServerState, settings: HttpSettings, metrics: Callable[[], bytes]) -> Starlette:
    """The application; `metrics` makes the Prometheus page."""
    routes = Routes(state, settings, metrics)
    return Starlette(
        routes=[
            Route("/v1/completions", generation(state, CompletionRequest), methods=["POST"]),
            Route("/v1/chat/completions", generation(state, ChatRequest), methods=["POST"]),
            Route("/v1/embeddings", routes.embeddings, methods=["POST"]),
            Route("/v1/models", routes.models),
            Route("/tokenize", routes.tokenize, methods=["POST"]),
            Route("/health", routes.health),
            Route("/version", routes.version),
            Route("/metrics", routes.metrics),
            Route("/v1/knobs", routes.knobs),
            Route("/v1/knobs", routes.set_knobs, methods=["PATCH"]),
        ],
        middleware=[Middleware(Guard, settings=settings)],
        exception_handlers={ApiError: _answer_error, HTTPException: _answer_error, Exception: _answer_error},
    )


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, ApiError):
        return error.response()
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, f"{error.detail}: {request.method} {request.url.path[:200]}").response()
    return ApiError(500, f"the server failed: {type(error).__name__}").response()


class Routes:
    """Everything but generation."""

    def __init__(self, state: ServerState, settings: HttpSettings, metrics: Callable[[], bytes]) -> None:
        self._state = state
        self._settings = settings
        self._metrics = metrics

    async def models(self, request: Request) -> Response:
        state = self._state
        common = {"object": "model", "created": state.created, "owned_by": "schedtop"}
        own = {"root": state.header.model, "parent": None, "max_model_len": state.max_model_len}
        entries = [{"id": name, **common, **own} for name in state.names]
        entries += [
            {"id": name, **common, "root": name, "parent": state.names[0], "max_model_len": None}
            for name in state.adapters
        ]
        return json_response({"object": "list", "data": entries})

    async def embeddings(self, request: Request) -> Response:
        raise ApiError(
            400, "embeddings are not served: neither simulated devices nor models run here return vectors"
        )

    async def tokenize(self, request: Request) -> Response:
        state = self._state
        asked: TokenizeRequest = read(await read_body(request), TokenizeRequest)
        state.check_model(asked.model)
        try:
            if asked.messages:
                ids = state.texts.encode_chat([message_text(message) for message in asked.messages])
            elif asked.prompt is not None:
                ids = state.texts.encode(asked.prompt, asked.add_special_tokens is not False)
            else:
                raise ApiError(400, "give a prompt, or messages", "prompt")
        except ConfigError as error:
            raise ApiError(400, str(error), "messages") from None
        values = {"count": len(ids), "max_model_len": state.max_model_len, "tokens": ids.tolist()}
        return json_response({**values, "token_strs": None})

    async def health(self, request: Request) -> Response:
        return Response(status_code=200 if self._state.healthy else 503)

    async def version(self, request: Request) -> Response:
        return json_response({"version": __version__})

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics(), media_type=CONTENT_TYPE)

    async def knobs(self, request: Request) -> Response:
        return json_response(knobs_page(self._state.link))

    async def set_knobs(self, request: Request) -> Response:
        check_token(request, self._settings.token)
        asked: KnobsRequest = read(await read_body(request), KnobsRequest)
        by = f"http {asked.by}".strip()
        command = SetKnobs(0, asked.values, asked.expected_version, by, asked.dry_run)
        try:
            reply = await self._state.link.set_knobs(command)
        except NotTakenError as error:
            raise busy(str(error)) from None
        if not reply.ok:
            stale = asked.expected_version not in (None, reply.knobs_version)
            raise ApiError(409 if stale else 400, reply.text, "expected_version" if stale else "values")
        answer: dict[str, Any] = {"text": reply.text, "version": reply.knobs_version, "warnings": reply.warnings}
        return json_response(answer)
