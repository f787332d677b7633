"""Servers of tools and environments by name: their addresses, commands and keys."""

import os

import pytest

from prorl_service.errors import ProRLError
from prorl_service.tools.spec import McpSpec, NemoGymSpec, OpenEnvSpec, ServerSpec


def test_a_spec_is_a_url_or_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRORL_MCP_KEY_WEB", "the-key")
    servers = ["web=https://host/mcp?a=b", "corpus=sh -c 'cat a=b'"]
    web, corpus = McpSpec.take_with_tools(servers, ["corpus=search, fetch"])
    assert (web.name, web.url, web.tools) == ("web", "https://host/mcp?a=b", ())
    assert (web.is_url, web.key) == (True, "the-key")
    assert (corpus.is_url, corpus.key, corpus.tools) == (False, None, ("search", "fetch"))
    assert corpus.command == ["sh", "-c", "cat a=b"]


@pytest.mark.parametrize("kind", [NemoGymSpec, OpenEnvSpec, McpSpec])
def test_servers_are_named_with_keys_that_leave_the_environment(
    kind: type[ServerSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{kind.KEY_VARIABLE}GYM", "secret")
    named = kind.take(["gym=http://one:1/base", "other=https://two"])
    assert [(spec.name, spec.key) for spec in named] == [("gym", "secret"), ("other", None)]
    assert f"{kind.KEY_VARIABLE}GYM" not in os.environ


def test_the_sessions_of_openenv_have_a_route_of_sockets() -> None:
    urls = [OpenEnvSpec("one", url).socket_url for url in ("https://host/base/", "http://host:80")]
    assert urls == ["wss://host/base/ws", "ws://host:80/ws"]


@pytest.mark.parametrize(
    ("servers", "problem"),
    [
        (["gym"], "needs a URL"),
        (["=http://one"], "cannot be the name"),
        (["Gym=http://one"], "cannot be the name"),
        (["http://one"], "cannot be the name"),
        (["gym=one:8100"], "needs a URL"),
        (["gym=ftp://one"], "needs a URL"),
        (["gym=http://one:port"], "needs a URL"),
        (["gym=http://user:secret@one"], "needs a URL"),
        (["gym=http://one?key=secret"], "needs a URL"),
        (["gym=http://one", "gym=http://two"], "named twice"),
    ],
)
def test_a_wrong_option_is_refused_without_what_may_be_secret(
    servers: list[str], problem: str
) -> None:
    with pytest.raises(ProRLError, match=problem) as refused:
        NemoGymSpec.take(servers)
    assert "secret" not in f"{refused.value.message} {refused.value.hint}"


@pytest.mark.parametrize(
    ("servers", "tools", "problem"),
    [
        (["corpus"], [], "a URL or a command"),
        (["corpus="], [], "a URL or a command"),
        (["corpus=http://"], [], "a URL or a command"),
        (["corpus=sh 'unclosed"], [], "a URL or a command"),
        (["corpus=no_such_program x"], [], "no program 'no_such_program'"),
        (["a-b=sh"], [], "cannot be the name"),
        (["a=sh"], ["b=search"], "'b', which is not an MCP server"),
        (["a=sh"], ["a="], "no tools are named"),
    ],
)
def test_malformed_servers_and_tools_are_refused(
    servers: list[str], tools: list[str], problem: str
) -> None:
    with pytest.raises(ProRLError, match=problem):
        McpSpec.take_with_tools(servers, tools)


def test_no_secret_is_shown() -> None:
    shown = repr(McpSpec("web", "https://host/mcp?key=secret", key="secret"))
    assert "secret" not in shown
