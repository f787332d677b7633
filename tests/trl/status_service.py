"""A service that answers `GET /v1/status` and nothing else."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prorl_service import __version__
from prorl_service.schemas import Blame, ErrorInfo, ErrorResponse, ServiceStatus

STATUS = ServiceStatus(
    version=__version__,
    run="run",
    is_stopping=False,
    policy_version=0,
    sandbox="none",
    agents=[],
    rollouts={},
    queues={},
    workers={},
    backends=[],
)
_REFUSED = ErrorResponse(
    error=ErrorInfo(kind="Unauthorized", blame=Blame.TASK, message="wrong token")
)


@contextmanager
def status_service(*, token: str = "", **status: Any) -> Iterator[str]:
    """Yields its address. Without a `token` it takes any; `status`: fields of its answer."""
    answer = json.dumps(STATUS.model_dump(mode="json") | status)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_right = not token or self.headers.get("Authorization") == f"Bearer {token}"
            body = (answer if is_right else _REFUSED.model_dump_json()).encode()
            self.send_response(200 if is_right else 401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
