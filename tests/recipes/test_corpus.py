"""The corpus: ranking, reading, and the server as a client sees it."""

import json
import sys
from pathlib import Path

import pytest

from prorl_service.testing import FakeSandbox
from prorl_service.tools.mcp.servers import McpServers
from prorl_service.tools.spec import McpSpec
from recipes.math_code.corpus import Corpus, Document, read_documents, snippet
from recipes.math_code.corpus_server import PAGE

DOCUMENTS = [
    Document("ga", "Gallium", "Gallium is a soft metal. It melts at 302.9 K, in the hand."),
    Document("hg", "Mercury", "Mercury is a metal, liquid at room temperature. Mercury boils."),
    Document("he", "Helium", "Helium is a gas. " * 40 + "No metal."),
    Document("sun", "The Sun", "A star.\n\nIts light takes eight minutes to Earth."),
]


def found(query: str, limit: int = 9) -> list[str]:
    return [document.id for document in Corpus(DOCUMENTS).search(query, limit)]


def test_rare_words_and_short_documents_rank_higher() -> None:
    assert found("metal") == ["hg", "ga", "he"]
    assert found("a metal: GALLIUM")[0] == "ga"
    assert found("metal", limit=1) == ["hg"]
    assert found("unheard of") == []
    assert found("") == []


def test_a_snippet_is_the_paragraph_that_matches() -> None:
    assert snippet(DOCUMENTS[3], "light minutes", 400) == "Its light takes eight minutes to Earth."
    assert snippet(DOCUMENTS[3], "star", 3) == "A s ..."
    assert snippet(Document("e", "", ""), "star", 3) == ""


def test_documents_are_read_from_a_directory_or_from_lines(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.md").write_text("Markdown.")
    (tmp_path / "a.txt").write_text("Text.")
    (tmp_path / "c.bin").write_bytes(b"\0")
    assert [(one.id, one.title, one.text) for one in read_documents(tmp_path)] == [
        ("a.txt", "a", "Text."),
        ("sub/b.md", "b", "Markdown."),
    ]
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"id": 1, "text": "One."}\n{"id": "2", "title": "Two", "text": "."}\n')
    assert list(read_documents(lines)) == [Document("1", "", "One."), Document("2", "Two", ".")]


@pytest.mark.parametrize("line", ["no JSON", '{"id": 1}', "[]", "3"])
def test_the_error_names_a_line_that_is_no_document(tmp_path: Path, line: str) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"id": 1, "text": "One."}\n' + line)
    with pytest.raises(ValueError, match=r"lines\.jsonl, line 2"):
        list(read_documents(lines))


def test_ids_are_unique_and_a_corpus_is_not_empty() -> None:
    with pytest.raises(ValueError, match="two documents have the id 'ga'"):
        Corpus([*DOCUMENTS, DOCUMENTS[0]])
    with pytest.raises(ValueError, match="no documents"):
        Corpus([])


@pytest.mark.processes
async def test_a_client_searches_and_reads(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    long = Document("long", "Long", "x" * PAGE + "the end")
    rows = ({"id": one.id, "title": one.title, "text": one.text} for one in [*DOCUMENTS, long])
    lines.write_text("\n".join(map(json.dumps, rows)))
    command = f"{sys.executable} -m recipes.math_code.corpus_server {lines}"
    async with McpServers([McpSpec("corpus", command)]) as servers:
        tools = {tool.name: tool for tool in servers.tools(["corpus"])}
        assert list(tools) == ["search", "fetch"]
        assert all(tool.may_repeat for tool in tools.values())

        async def call(name: str, **arguments: object) -> str:
            parsed = tools[name].arguments.model_validate(arguments)
            sandbox = FakeSandbox(lambda *_: pytest.fail("the tool called the sandbox"))
            return (await tools[name].call(sandbox, parsed, timeout_s=30)).output

        listed = await call("search", query="metal that melts", limit=2)
        assert listed.startswith("[ga] Gallium\nGallium is a soft metal.")
        assert listed.count("\n\n[") == 1
        assert await call("search", query="unheard") == "No document has any of these words."
        assert await call("fetch", id="ga") == f"Gallium\n\n{DOCUMENTS[0].text}"
        assert (await call("fetch", id="long")).endswith(f"x\n[7 more characters: start={PAGE}]")
        assert await call("fetch", id="long", start=PAGE) == "Long\n\nthe end"
        assert "no document 'none'" in await call("fetch", id="none")
