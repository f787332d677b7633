"""The routes of the page: its files, which hold no data and need no token.

A browser revalidates files each time, so that no page is older than its service. The policy lets
the page load only from its own service, and keeps text of models and tools from becoming script.
"""

from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Path, Response
from fastapi.responses import PlainTextResponse

from prorl_service.page import files

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Vary": "Accept-Encoding",
}

page_router = APIRouter(include_in_schema=False)

Known = Annotated[str | None, Header(alias="If-None-Match")]
Encodings = Annotated[str, Header(alias="Accept-Encoding")]


@page_router.api_route("/", methods=["GET", "HEAD"])
def get_index(known: Known = None, encodings: Encodings = "") -> Response:
    try:
        files.check_complete()
    except files.PageIncomplete as error:
        return PlainTextResponse(f"{error}: {error.hint}\n", error.status, HEADERS)
    return _file(files.INDEX, known, encodings)


@page_router.api_route("/page/{name:path}", methods=["GET", "HEAD"])
def get_file(
    name: Annotated[str, Path()], known: Known = None, encodings: Encodings = ""
) -> Response:
    return _file(name, known, encodings)


def _file(name: str, known: str | None, encodings: str) -> Response:
    file = files.read(name)
    if file is None:
        raise HTTPException(404, "the page has no such file")
    headers = HEADERS | {"ETag": file.etag}
    if known is not None and _names(known, file.etag):
        return Response(status_code=304, headers=headers)
    if "gzip" in encodings:
        headers["Content-Encoding"] = "gzip"
        return Response(file.compressed, media_type=file.media_type, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)


def _names(known: str, etag: str) -> bool:
    tags = (tag.strip().removeprefix("W/") for tag in known.split(","))
    return any(tag in (etag, "*") for tag in tags)
