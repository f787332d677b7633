"""A bound on what precedes a request's body. The parser has none of its own: one endless header
would fill the memory before any middleware sees it."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
"""Of request line and headers; what arrives in one piece with the last of it is let through."""


class BoundedHeads(HttpToolsProtocol):
    _head_bytes = 0
    _in_head = True

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(f"more than {MAX_HEAD_BYTES} bytes before the body")

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
