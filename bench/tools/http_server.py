"""An HTTP action server such as others run in their sandboxes. It only answers.

`python -m bench.tools.http_server FD...` serves on those listening sockets.
"""

import socket
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class Request(BaseModel):
    action: str
    args: dict[str, Any]


@app.post("/execute_action")
async def execute_action(request: Request) -> dict[str, Any]:
    return {"observation": request.action, "content": "", "extras": {}}


if __name__ == "__main__":
    sockets = [socket.socket(fileno=int(fd)) for fd in sys.argv[1:]]
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=sockets)
