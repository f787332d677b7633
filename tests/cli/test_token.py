"""`prorl token` and `prorl open`: named tokens on the command line, and the link that signs in."""

import webbrowser
from pathlib import Path

import pytest

from prorl_service.cli.main import main
from prorl_service.net.callers import Role, TokenCallers
from prorl_service.net.credentials import TOKEN_VARIABLE, make_own_token


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 0
    return capsys.readouterr().out.strip()


def test_tokens_are_added_listed_and_removed(
    capsys: pytest.CaptureFixture[str], own_directory: Path
) -> None:
    own = printed(capsys, "token")
    assert own == make_own_token()
    alice = printed(capsys, "token", "add", "alice", "--role", "read")
    bob = printed(capsys, "token", "add", "bob")
    callers = TokenCallers(own, own_directory / "prorl/tokens.json")
    found = [callers.find(one) for one in (alice, bob)]
    assert [(one.name, one.role) for one in found if one is not None] == [
        ("alice", Role.READ),
        ("bob", Role.SUBMIT),
    ]
    listed = printed(capsys, "token", "list")
    assert "alice" in listed
    assert "submit" in listed
    assert alice not in listed
    printed(capsys, "token", "remove", "alice")
    assert callers.find(alice) is None
    with pytest.raises(SystemExit, match="2"):
        main(["token", "remove", "alice"])
    assert "there is no token of alice" in capsys.readouterr().err


def test_open_prints_a_link_with_the_token(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, own_directory: Path
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    link = f"http://127.0.0.1:9/#token={make_own_token()}"
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert printed(capsys, "open", "--url", "http://127.0.0.1:9") == link
    assert opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    assert printed(capsys, "open", "--url", "http://127.0.0.1:9") == link
    file = own_directory / "prorl/open.html"
    assert opened == [file.as_uri()], "the token is no argument of the browser"
    assert link in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
