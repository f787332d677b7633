"""An MCP server over documents of your own: `search` finds some, `fetch` reads one.

It lets rollouts look things up offline, with the same results each time:

    prorl serve --mcp 'corpus=python -m recipes.math_code.corpus_server DOCUMENTS'

or, shared by several services, `--port 8765` here and `--mcp corpus=http://127.0.0.1:8765/mcp`.
"""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import Port
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from prorl_service.cli.program import run
from prorl_service.errors import InvalidRequest
from recipes.math_code.corpus import Corpus, read_documents, snippet

PAGE = 8000
"""Characters of one `fetch`."""
SNIPPET = 400

READ_ONLY = ToolAnnotations(read_only_hint=True)


def corpus_server(corpus: Corpus) -> MCPServer:
    server = MCPServer("corpus", log_level="WARNING")

    @server.tool(annotations=READ_ONLY, structured_output=False)
    def search(
        query: Annotated[str, Field(description="Words to look for.")],
        limit: Annotated[int, Field(ge=1, le=20, description="Most documents to list.")] = 5,
    ) -> str:
        """Search the documents. Lists the best ones with their ids and a passage of each."""
        found = corpus.search(query, limit)
        if not found:
            return "No document has any of these words."
        return "\n\n".join(
            f"[{one.id}] {one.title}\n{snippet(one, query, SNIPPET)}" for one in found
        )

    @server.tool(annotations=READ_ONLY, structured_output=False)
    def fetch(
        id: Annotated[str, Field(description="The id of a document, as `search` lists it.")],
        start: Annotated[int, Field(ge=0, description="Character to start at.")] = 0,
    ) -> str:
        """Read a document, or the next part of a long one."""
        document = corpus.documents.get(id)
        if document is None:
            raise ToolError(f"there is no document {id!r}")
        end = start + PAGE
        left = len(document.text) - end
        more = f"\n[{left} more characters: start={end}]" if left > 0 else ""
        return f"{document.title}\n\n{document.text[start:end]}{more}"

    return server


def main(
    documents: Annotated[Path, Parameter(help="Directory of text files, or JSONL file.")],
    port: Annotated[
        Port | None,
        Parameter(help="Port for HTTP on loopback; default: stdio."),
    ] = None,
) -> None:
    """Serve documents to MCP clients."""
    try:
        corpus = Corpus(read_documents(documents))
    except (OSError, ValueError) as error:
        raise InvalidRequest.of_field("documents", str(error)) from None
    print(f"corpus: {len(corpus.documents)} documents", file=sys.stderr, flush=True)
    server = corpus_server(corpus)
    if port is None:
        server.run("stdio")
    else:
        server.run("streamable-http", port=port)


if __name__ == "__main__":
    run(main)
