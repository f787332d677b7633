"""HTTP servers of tests, such as one that answers each request with the next reply of a script."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from threading import Event

from pydantic import BaseModel

from prorl_service.errors import ProRLError
from prorl_service.schemas import ErrorResponse
from prorl_service.schemas.arrays import PACKED

Reply = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def answering(answer: Reply, tls: SSLContext | None = None) -> Iterator[str]:
    """Yields the address of a server that has `answer` reply to each request."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def reply(self) -> None:
            answer(self)

        do_GET = do_POST = do_PUT = do_DELETE = reply

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, ThreadPoolExecutor(1) as pool:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        pool.submit(server.serve_forever, 0.01)
        try:
            yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@dataclass
class ScriptedService:
    """A service that answers the n-th request with the n-th reply."""

    url: str = ""
    replies: deque[Reply] = field(default_factory=deque)
    requests: list[tuple[str, str, bytes]] = field(default_factory=list)
    accept: str = ""
    authorization: str | None = None

    def will(self, *replies: Reply) -> None:
        self.replies.extend(replies)


def read_body(handler: BaseHTTPRequestHandler) -> bytes:
    if handler.headers["Transfer-Encoding"] != "chunked":
        return handler.rfile.read(int(handler.headers["Content-Length"] or 0))
    chunks = []
    while size := int(handler.rfile.readline(), 16):
        chunks.append(handler.rfile.read(size))
        handler.rfile.readline()
    handler.rfile.readline()
    return b"".join(chunks)


def answers(model: BaseModel, status: int = 200) -> Reply:
    return raw(model.model_dump_json(context=PACKED).encode(), status)


def fails(error: ProRLError, status: int | None = None) -> Reply:
    return answers(ErrorResponse(error=error.info()), status or error.answer_status)


def raw(body: bytes, status: int = 200) -> Reply:
    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return reply


def hangs_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


def streams(*pieces: bytes, breaks: bool = False, hold: Event | None = None) -> Reply:
    """Returns a chunked reply; `breaks` drops the connection instead of ending it, after `hold`."""

    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for piece in pieces:
            handler.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        if hold is not None:
            hold.wait(30)
        if breaks:
            handler.close_connection = True
        else:
            handler.wfile.write(b"0\r\n\r\n")

    return reply
