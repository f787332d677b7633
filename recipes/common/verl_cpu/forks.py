"""Ray's workers as forks of one process that has imported torch and more, to save CPU time.

Seven workers would each import for five seconds. `python forks.py SOCKET SCRIPT ...` stands in for
`python SCRIPT ...` in Ray's `py_executable`: it asks the process behind SOCKET for a fork that runs
the script with this environment and these streams, and lives as long as the fork does. For speed it
imports only the standard library.
"""

import importlib
import json
import os
import runpy
import signal
import socket
import sys

PRELOADED = (
    "accelerate",
    "aiohttp",
    "datasets",
    "fastapi",
    "hydra",
    "pandas",
    "peft",
    "PIL.Image",
    "tensordict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torchdata.stateful_dataloader",
    "transformers.models.qwen3.modeling_qwen3",
    "uvicorn",
    "zmq.asyncio",
)
"""Modules to import before forking. Ray and verl read the environment on import: not here."""


def ask_for_fork(address: str, argv: list[str]) -> None:
    request = {"argv": argv, "environment": dict(os.environ), "directory": os.getcwd()}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [b"0"], [0, 1, 2])
        connection.sendall(json.dumps(request).encode())
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)  # returns when the fork ends


def serve(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()  # requests wait for the imports
        for module in PRELOADED:
            importlib.import_module(module)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _run(connection)


def _run(connection: socket.socket) -> None:
    """Runs the requested script. `connection` stays open until this process ends."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    with connection.makefile("rb") as reader:
        request = json.load(reader)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.argv = request["argv"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        ask_for_fork(sys.argv[1], sys.argv[2:])
