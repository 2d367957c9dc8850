"""The pages for people and tools: the list of models, /openapi.json, /docs and /metrics; an ASGI application."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from importlib.resources import files
from typing import Final

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from maitred import __version__
from maitred.deployment.router import Router, Served
from maitred.gateway import metadata
from maitred.gateway.openapi import openapi

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_ASSETS: Final = {"docs.html": "text/html", "docs.js": "text/javascript", "docs.css": "text/css"}
_SAFE: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def site(router: Router, metrics_text: Callable[[], str] | None = None) -> Starlette:
    """The application behind every path that is no inference route.

    It runs on another thread than the router's loop and only reads. `metrics_text` is called on that thread too; None
    where metrics are not for this port.
    """

    async def models(request: Request) -> Response:
        return HTMLResponse(_models_page(router), headers=_SAFE)

    async def document(request: Request) -> Response:
        return Response(orjson.dumps(openapi(router.all())), media_type="application/json")

    async def docs(request: Request) -> Response:
        return _asset("docs.html")

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _ASSETS:
            raise HTTPException(404)
        return _asset(name)

    async def metrics(request: Request) -> Response:
        if metrics_text is None:
            return _error(404, "metrics are on the admin port of this server")
        return Response(metrics_text(), media_type=METRICS_TYPE)

    routes = [
        Route("/", models),
        Route("/openapi.json", document),
        Route("/docs", docs),
        Route("/docs/{name}", asset),
        Route("/metrics", metrics),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _refused, Exception: _failed})


def _asset(name: str) -> Response:
    content = files("maitred.gateway").joinpath("assets", name).read_bytes()
    return Response(content, media_type=_ASSETS[name], headers=_SAFE)


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": message}, status, headers)


async def _refused(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else None
    if status == 405 and request.method == "OPTIONS" and headers:
        return Response(status_code=204, headers={"Allow": f"{headers['Allow']}, OPTIONS"})
    if status == 404:
        return _error(404, "there is no such route; /docs lists the routes of this server")
    message = "this route does not take that method" if status == 405 else "the request was refused"
    return _error(status, message, headers)


async def _failed(request: Request, error: Exception) -> Response:
    return _error(500, "a defect of this server; its log has the details")


def _models_page(router: Router) -> str:
    rows = "".join(
        f"<tr><td><a href='/docs#{escape(served.name)}'>{escape(served.name)}</a></td><td>{escape(served.version)}</td>"
        f"<td>{escape(served.state)}</td><td>{escape(metadata.reason(served))}</td>"
        f"<td><code>{escape(_signature(served))}</code></td></tr>"
        for served in router.all()
    )
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>maitred</title>"
        "<link rel='stylesheet' href='/docs/docs.css'></head><body><main><h1>maitred</h1>"
        f"<p>Version {escape(__version__)}. <a href='/docs'>Try the models</a>, "
        "<a href='/openapi.json'>OpenAPI</a>, <a href='/metrics'>metrics</a>.</p>"
        "<table><thead><tr><th>model</th><th>version</th><th>state</th><th>reason</th><th>signature</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></main></body></html>"
    )


def _signature(served: Served) -> str:
    return "" if served.description is None else served.description.signature.to_text()
