"""The page's files over HTTP: complete, of the right type, guarded, and without a token."""

import re
from pathlib import Path

import httpx
import pytest

from prorl_service.page import files
from prorl_service.schemas import BackendSpec
from prorl_service.server.view_routes import POLICY
from prorl_service.testing import StubEngine
from tests.server.application import Settings

pytestmark = pytest.mark.processes

LINK = re.compile(r'(?:src|href)="(page/[^"]+)"')


@pytest.fixture
def settings(engine: StubEngine) -> Settings:
    return Settings(
        backends=(BackendSpec(url=engine.url),), sandbox="bubblewrap", token="a-token-of-its-own"
    )


async def test_the_page_and_all_that_it_links_to_need_no_token(http: httpx.AsyncClient) -> None:
    page = await http.get("/")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    links = LINK.findall(page.text)
    assert {"page/app.js", "page/vendor/uplot.js"} <= set(links)
    for link in links:
        file = await http.get(f"/{link}")
        assert file.is_success, link
        kind = "text/css" if link.endswith(".css") else "text/javascript"
        assert file.headers["Content-Type"] == f"{kind}; charset=utf-8"
        assert file.headers["Content-Security-Policy"] == POLICY
        assert file.headers["X-Content-Type-Options"] == "nosniff"
        assert file.headers["Referrer-Policy"] == "no-referrer"
    assert (await http.get("/v1/status")).status_code == 401


async def test_files_are_compressed_for_clients_that_accept_it(http: httpx.AsyncClient) -> None:
    plain = await http.get("/page/app.js", headers={"Accept-Encoding": "identity"})
    packed = await http.get("/page/app.js", headers={"Accept-Encoding": "br, gzip"})
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert packed.content == plain.content
    assert int(packed.headers["Content-Length"]) < len(plain.content) / 2
    assert packed.headers["Vary"] == "Accept-Encoding"


async def test_an_unchanged_file_is_not_sent_again(http: httpx.AsyncClient) -> None:
    first = await http.get("/page/app.js")
    assert first.headers["Cache-Control"] == "no-cache"
    etag = first.headers["ETag"]
    for known in (etag, f"W/{etag}", f'"older", {etag}', "*"):
        again = await http.get("/page/app.js", headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["ETag"] == etag
    assert (await http.get("/page/app.js", headers={"If-None-Match": '"older"'})).is_success
    head = await http.head("/page/app.js")
    assert (head.headers["ETag"], head.content) == (etag, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/page/nothing.js",
        "/page/",
        "/page/vendor",
        "/page/vendor/.installed",
        "/page/%2e%2e/files.py",
        "/page/vendor/..%2f..%2ffiles.py",
        "/page//etc/passwd",
        "/page/app.js%00.css",
    ],
)
async def test_only_files_of_the_page_are_served(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(path)
    assert answer.status_code == 404
    assert answer.headers["Content-Type"] == "application/json"


async def test_a_checkout_without_third_party_files_says_what_to_run(
    http: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "index.html").write_text("incomplete")
    monkeypatch.setattr(files, "STATIC", tmp_path)
    answer = await http.get("/")
    assert answer.status_code == 503
    assert "run scripts/setup-page" in answer.text
    assert answer.text.count("\n") == 1
