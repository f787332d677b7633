import pytest

from prorl_service.errors import ProRLError
from prorl_service.tools.spec import McpSpec


def test_a_spec_is_a_url_or_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRORL_MCP_KEY_WEB", "the-key")
    servers = ["web=https://host/mcp?a=b", "corpus=sh -c 'cat a=b'"]
    web, corpus = McpSpec.take_with_tools(servers, ["corpus=search, fetch"])
    assert (web.name, web.url, web.tools) == ("web", "https://host/mcp?a=b", ())
    assert (web.is_url, web.key) == (True, "the-key")
    assert (corpus.is_url, corpus.key, corpus.tools) == (False, None, ("search", "fetch"))
    assert corpus.command == ["sh", "-c", "cat a=b"]
    assert (
        McpSpec.take_with_tools(servers, [])[0].key is None
    )  # the key was removed from the environment


@pytest.mark.parametrize(
    ("servers", "tools", "problem"),
    [
        (["corpus"], [], "a URL or a command"),
        (["corpus="], [], "a URL or a command"),
        (["corpus=http://"], [], "a URL or a command"),
        (["corpus=sh 'unclosed"], [], "a URL or a command"),
        (["corpus=no_such_program x"], [], "no program 'no_such_program'"),
        (["=sh"], [], "cannot be the name"),
        (["Corpus=sh"], [], "cannot be the name"),
        (["a-b=sh"], [], "cannot be the name"),
        (["a=sh", "a=sh"], [], "named twice"),
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
