"""Clients of a service behind TLS whose certificate is of a private authority."""

import http.server
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trustme

from prorl_service.client import RolloutClient
from prorl_service.client.errors import CA_FILE
from prorl_service.errors import ProRLError


class _Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "15")
        self.end_headers()
        self.wfile.write(b'{"status":"ok"}')

    def log_message(self, *_: object) -> None: ...


@contextmanager
def serving(authority: trustme.CA) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Healthy) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"https://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_private_authority_is_trusted_only_if_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    authority = trustme.CA()
    with serving(authority) as url, authority.cert_pem.tempfile() as ca_file:
        unknown = pytest.raises(ProRLError, match=f"own, name its certificate .* in {CA_FILE}")
        with RolloutClient(url, token="t", retry_s=60) as client, unknown:
            client.health()
        monkeypatch.setenv(CA_FILE, ca_file)
        with RolloutClient(url, token="t", retry_s=0) as client:
            client.health()


@pytest.mark.parametrize("name", ["absent.pem", "empty.pem"])
def test_a_file_without_certificates_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, name: str
) -> None:
    path = f"{tmp_path}/{name}"
    if name == "empty.pem":
        with open(path, "w") as file:
            file.write("nothing")
    monkeypatch.setenv(CA_FILE, path)
    with pytest.raises(ProRLError, match=f"{CA_FILE}=.*{name} cannot be used"):
        RolloutClient("https://127.0.0.1:1", token="t")
