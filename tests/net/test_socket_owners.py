"""The user's token, kept from a server of another user that took the port first."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prorl_service.client import RolloutClient
from prorl_service.net.credentials import authorization, make_own_token
from prorl_service.net.socket_owners import users_listening

OTHER_USER = 12345


@pytest.fixture
def header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return {"Authorization": f"Bearer {make_own_token()}"}


@contextmanager
def listening(address: str, port: int = 0, user: int | None = None) -> Iterator[int]:
    """Yields the port; an IPv6 server takes IPv4 connections only if its address is `::`."""
    if user is not None and os.getuid() != 0:
        pytest.skip("only root can listen as another user")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with _socket_of(user, family) as server:
        if family is socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address != "::"))
        server.bind((address, port))
        server.listen()
        yield server.getsockname()[1]


def _socket_of(user: int | None, family: socket.AddressFamily) -> socket.socket:
    if user is None:
        return socket.socket(family)
    os.seteuid(user)
    try:
        return socket.socket(family)
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "127.0.0.1"),
        ("127.0.0.1", "localhost"),
        ("::1", "localhost"),
        ("::1", "[::1]"),
        ("::", "[::1]"),
    ],
)
def test_the_server_of_another_user_gets_no_token(
    header: dict[str, str], address: str, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    with listening(address, user=OTHER_USER) as port:
        url = f"http://{host}:{port}"
        assert authorization(url) == {}
        with RolloutClient(url) as client:
            assert "Authorization" not in client._client._http.headers
        assert authorization(url, "given") == {"Authorization": "Bearer given"}
    assert f"{url} belongs to user {OTHER_USER}" in caplog.text
    assert header["Authorization"].split()[1] not in caplog.text


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_the_users_own_server_gets_the_token(
    header: dict[str, str], address: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with listening(address) as port:
        name = "[::1]" if ":" in address else "127.0.0.1"
        assert users_listening(name.strip("[]"), port) == {os.getuid()}
        assert authorization(f"http://{name}:{port}") == header
        assert authorization(f"http://localhost:{port}") == header
    assert authorization(f"http://localhost:{port}") == header, (
        "no token for a service that is yet to start"
    )
    assert not caplog.text


def test_another_users_server_at_another_address_changes_nothing(header: dict[str, str]) -> None:
    """Both servers listen on the same port."""
    with listening("127.0.0.1") as port, listening("127.0.0.2", port, OTHER_USER):
        assert authorization(f"http://127.0.0.1:{port}") == header
        assert authorization(f"http://127.0.0.2:{port}") == {}


def test_the_owner_of_the_token_gets_it_from_root(header: dict[str, str], tmp_path: Path) -> None:
    with listening("127.0.0.1", user=OTHER_USER) as port:
        os.chown(tmp_path / "prorl" / "token", OTHER_USER, -1)
        assert authorization(f"http://127.0.0.1:{port}") == header


def test_the_token_is_sent_where_the_kernel_reports_no_owners(
    header: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prorl_service.net.socket_owners.TABLES", (tmp_path / "none",))
    with listening("127.0.0.1", user=OTHER_USER) as port:
        assert authorization(f"http://127.0.0.1:{port}") == header
