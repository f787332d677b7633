"""A registry on loopback that serves an OCI layout, with the token exchange of real ones."""

import asyncio
from typing import Self

from aiohttp import web

from tests.sandbox.images.oci import Layout

TOKEN = "anonymous-token"


class FakeRegistry:
    """`async with FakeRegistry(layout) as registry`: any repository has the layout's tags.

    Set `status` to fail all requests with it, `altered` to serve manifests that differ from their
    digests; clear `blobs_flow` to hold back blobs (`blob_wanted` is set by the first request for
    one). `requests` keeps (method, path).
    """

    def __init__(self, layout: Layout, *, tokens: bool = False) -> None:
        self.status = 200
        self.altered = False
        self.blob_wanted = asyncio.Event()
        self.blobs_flow = asyncio.Event()
        self.blobs_flow.set()
        self.requests: list[tuple[str, str]] = []
        self._layout = layout
        self._tokens = tokens

    def reference(self, name: str = "team/tiny", tag: str = "latest") -> str:
        return f"docker://{self.host}/{name}:{tag}"

    def fetched(self, kind: str) -> int:
        """Returns how often "manifests" or "blobs" were read."""
        return sum(method == "GET" and f"/{kind}/" in path for method, path in self.requests)

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/v2/", self._ping)
        app.router.add_get("/token", self._token)
        app.router.add_get("/v2/{name:.+}/manifests/{wanted}", self._manifest)
        app.router.add_get("/v2/{name:.+}/blobs/{wanted}", self._blob)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.host = f"127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.blobs_flow.set()
        await self._runner.cleanup()

    async def _ping(self, request: web.Request) -> web.Response:
        return self._refusal(request) or web.json_response({})

    async def _token(self, request: web.Request) -> web.Response:
        assert request.query["service"] == "fake"
        return web.json_response({"token": TOKEN})

    async def _manifest(self, request: web.Request) -> web.Response:
        if refusal := self._refusal(request):
            return refusal
        digest = wanted = request.match_info["wanted"]
        media_type = "application/vnd.oci.image.manifest.v1+json"
        for entry in self._layout.entries:
            if wanted in (entry["annotations"].values()):
                digest = entry["digest"]
            if entry["digest"] == digest:
                media_type = entry["mediaType"]
        path = self._layout.blob_path(digest)
        if ":" not in digest or not path.exists():
            return web.json_response({"errors": [{"code": "MANIFEST_UNKNOWN"}]}, status=404)
        body = path.read_bytes() + (b" " if self.altered else b"")
        headers = {"Docker-Content-Digest": digest, "Content-Type": media_type}
        return web.Response(body=body, headers=headers)

    async def _blob(self, request: web.Request) -> web.StreamResponse:
        if refusal := self._refusal(request):
            return refusal
        self.blob_wanted.set()
        await self.blobs_flow.wait()
        return web.FileResponse(self._layout.blob_path(request.match_info["wanted"]))

    def _refusal(self, request: web.Request) -> web.Response | None:
        self.requests.append((request.method, request.path))
        if self.status != 200:
            return web.json_response({"errors": []}, status=self.status)
        if self._tokens and request.headers.get("Authorization") != f"Bearer {TOKEN}":
            challenge = f'Bearer realm="http://{request.host}/token",service="fake",scope="repository:x:pull"'
            return web.Response(status=401, headers={"WWW-Authenticate": challenge})
        return None
