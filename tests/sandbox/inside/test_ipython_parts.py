"""Parts of the kernel that the service puts together, and replies that execd refuses."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prorl_service.sandbox.guest.execd.ipython import IPythonTool
from prorl_service.sandbox.guest.execd.kernel import MAX_IMAGE_CHARS, MAX_IMAGES, PROGRAMS, check
from prorl_service.sandbox.guest.execd.loop import Loop
from prorl_service.sandbox.guest.execd.protocol import ProtocolError
from prorl_service.sandbox.guest.execd.request import Request
from prorl_service.sandbox.host.bundle import kernel_packages

pytestmark = pytest.mark.unprivileged


@pytest.mark.processes
def test_the_kernel_needs_no_other_packages(tmp_path: Path) -> None:
    for path in kernel_packages():
        (tmp_path / path.name).symlink_to(path)
    assert not (tmp_path / "debugpy").exists()
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import ipykernel.kernelapp, zmq"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=60)


def test_python_3_7_can_parse_the_program_that_starts_the_kernel() -> None:
    assert ast.parse(Path(PROGRAMS, "launch.py").read_text(), feature_version=(3, 7)).body


GOOD = {"status": "ok", "execution_count": 1, "images": []}
IMAGE = {"mime": "image/png", "base64": "x"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": None},
        {"execution_count": "1"},
        {"images": None},
        {"images": ["x"]},
        {"images": [{"mime": "image/png"}]},
        {"images": [{**IMAGE, "base64": 1}]},
        {"images": [IMAGE] * (MAX_IMAGES + 1)},
        {"images": [{**IMAGE, "base64": "x" * (MAX_IMAGE_CHARS + 1)}]},
    ],
)
def test_a_malformed_reply_from_the_kernel_is_refused(wrong: dict[str, Any]) -> None:
    check({**GOOD, "images": [IMAGE] * MAX_IMAGES})
    with pytest.raises(ProtocolError):
        check(GOOD | wrong)


def test_a_sandbox_without_ipython_says_so() -> None:
    answers: list[tuple[dict[str, Any], bytes]] = []
    loop = Loop()
    header = {"id": 1, "op": "tool", "arguments": {"code": "1"}, "timeout_s": 1}
    call = Request(header, b"", lambda *answer: answers.append(answer), loop)
    IPythonTool(loop, kernel=None, output_bytes=100)(call)
    [(answer, text)] = answers
    assert (answer["result"]["is_error"], text) == (True, b"there is no IPython in this sandbox")
