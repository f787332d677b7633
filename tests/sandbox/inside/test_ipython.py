"""Results of code in the kernel, and everything that is known to confuse kernels."""

import base64
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from prorl_service.sandbox.base import SandboxProvider, ToolResult
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from tests.sandbox.inside.conftest import IN_BUBBLEWRAP
from tests.sandbox.sandboxes import Kind, output, running, started

pytestmark = [pytest.mark.processes, pytest.mark.unprivileged]

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def ipython(sandbox: RemoteSandbox, code: str, timeout_s: float = 30) -> ToolResult:
    return await sandbox.call_tool("ipython", {"code": code}, timeout_s=timeout_s)


async def value(sandbox: RemoteSandbox, code: str) -> str:
    """Returns the output of code that must succeed, without the line end."""
    result = await ipython(sandbox, code)
    assert result.data["status"] == "ok", result
    assert not result.is_error
    return result.output.removesuffix("\n")


@pytest.fixture(scope="module", params=IN_BUBBLEWRAP[1:])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Kinds whose default has no Python of an image."""
    kind: Kind = request.param
    return kind


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(provider: SandboxProvider) -> AsyncIterator[RemoteSandbox]:
    """Yields one sandbox for all tests that must not harm it."""
    async with started(provider) as sandbox:
        yield sandbox


class Trap(NamedTuple):
    code: str
    status: str
    output: str
    """Text that the output must contain."""


TRAPS = [
    Trap("", "ok", ""),
    Trap("# only a comment", "ok", ""),
    Trap("1 + 1", "ok", "2\n"),
    Trap("1 + 1;", "ok", ""),
    Trap("print('a'); 'b'", "ok", "a\n'b'\n"),
    Trap("print('no line end', end='')", "ok", "no line end"),
    Trap("1 / 0", "error", "ZeroDivisionError: division by zero"),
    Trap("print('before'); 1 / 0", "error", "before\n-----"),
    Trap("def f(:", "error", "SyntaxError"),
    Trap("'unclosed", "error", "SyntaxError"),
    Trap("if True:", "error", "SyntaxError: incomplete input"),
    Trap("print(1\x002)", "error", "null bytes"),
    Trap("print('nul\\0', b'\\xff'.decode('latin1'), '\\ud800')", "ok", "nul\0 ÿ \\ud800\n"),
    Trap("print('\ud800')", "ok", "\\ud800\n"),
    Trap("import sys; sys.stdout.buffer.write(b'\\xff\\xfe'); None", "ok", "\ufffd\ufffd"),
    Trap("print('grüße 你好 🎉')", "ok", "grüße 你好 🎉\n"),
    Trap("input('name? ')", "error", "does not support input"),
    Trap("import getpass; getpass.getpass()", "error", "does not support input"),
    Trap("import sys; sys.stdin.read()", "ok", "''\n"),
    Trap("import sys; print('out'); print('err', file=sys.stderr); print('out')", "ok",
         "out\nerr\nout\n"),
    Trap("import os; print(1); os.system('echo 2'); print(3)", "ok", "1\n2\n3\n"),
    Trap("import subprocess; print(1); print(subprocess.run('echo 2 >&2; exit 3', shell=True)"
         ".returncode)", "ok", "1\n2\n3\n"),
    Trap("!echo from $((1 + 1)) shells; cat", "ok", "from 2 shells\n"),
    Trap("!exit 3\n_exit_code", "ok", "3\n"),
    Trap("lines = !printf 'a\\nb\\n'\nlines", "ok", "['a', 'b']"),
    Trap("import os, sys; os.system(f'{sys.executable} -c \"print(1)\"');", "ok", "1\n"),
    Trap("%%bash\necho cell magic", "ok", "cell magic\n"),
    Trap("%no_such_magic", "error", "not found"),
    Trap("%who_ls int", "ok", "kept"),
    Trap("%%capture captured\nprint('hidden')", "ok", ""),
    Trap("import asyncio; await asyncio.sleep(0.001); 'awaited'", "ok", "'awaited'\n"),
    Trap("async for x in no_such: pass", "error", "NameError"),
    Trap("len?", "ok", "Return the number of items"),
    Trap("import sys; sys.exit(3)", "error", "SystemExit: 3"),
    Trap("exit()", "ok", ""),
    Trap("raise KeyboardInterrupt", "error", "KeyboardInterrupt"),
    Trap("raise ValueError('\x1b[31mred\x1b[0m')", "error", "ValueError: red"),
    Trap("print('\x1b[31mred\x1b[0m')", "ok", "\x1b[31mred\x1b[0m\n"),
    Trap("def deep(): deep()\ndeep()", "error", "RecursionError"),
    Trap("class Bad:\n  def __repr__(self): 1 / 0\nBad()", "error", "division by zero"),
    Trap("class Exit:\n  def __repr__(self): raise SystemExit\nExit()", "error", ""),
    Trap("bytearray(10**12)", "error", "MemoryError"),
    Trap("import sys; sys.stdout.close(); sys.stderr.close()", "ok", ""),
    Trap("import os; os.close(0); print(os.dup(1) >= 0)", "ok", "True\n"),
    Trap("import sys; sys.stdout = None", "ok", ""),
    Trap("import sys; sys.stdout = open('log', 'w'); print('x'); sys.stdout.close()", "ok", ""),
    Trap("print('back')", "ok", "back\n"),
    Trap("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN);", "ok", ""),
    Trap("import multiprocessing as m\np = m.get_context('fork').Process(target=print, "
         "args=('forked',))\np.start(); p.join()", "ok", "forked\n"),
    Trap("import os\nif os.fork() == 0: print('child'); os._exit(0)\nos.wait();", "ok", "child\n"),
    Trap("import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()", "ok",
         "ZeroDivisionError"),
    Trap("import warnings; warnings.warn('careful')", "ok", "careful"),
    Trap("from IPython.display import display; print(1); display(2); print(3)", "ok", "1\n2\n3\n"),
    Trap("from IPython.display import HTML; HTML('<b>bold</b>')", "ok", "HTML object"),
    Trap("print('\\x1e' * 3, 'x' * 3)", "ok", "\x1e\x1e\x1e xxx\n"),
    Trap("x = " + repr("y" * 1_000_000) + "; len(x)", "ok", "1000000\n"),
    Trap("import os; 'PRORL_KERNEL' in os.environ, 'IPYTHONDIR' in os.environ", "ok",
         "(False, False)"),
]  # fmt: skip


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.code[:30])
async def test_the_kernel_and_its_state_survive(sandbox: RemoteSandbox, trap: Trap) -> None:
    await value(sandbox, "kept = 41")
    result = await ipython(sandbox, trap.code)
    assert (result.data["status"], result.is_error) == (trap.status, trap.status != "ok"), result
    assert trap.output in result.output
    assert await value(sandbox, "kept + 1") == "42"


async def test_executions_are_counted(sandbox: RemoteSandbox) -> None:
    first, second = [(await ipython(sandbox, "In[-1]")).data for _ in range(2)]
    assert second["execution_count"] == first["execution_count"] + 1
    assert first == {
        "status": "ok",
        "execution_count": first["execution_count"],
        "timed_out": False,
        "truncated": False,
        "images": [],
    }


async def test_the_kernel_has_the_directory_and_variables_of_bash(sandbox: RemoteSandbox) -> None:
    workdir = await output(sandbox, "pwd")
    assert await value(sandbox, "import os; print(os.getcwd())") == workdir
    assert await value(sandbox, "print(os.environ['HOME'], os.environ['USER'])") == await output(
        sandbox, "echo $HOME $USER"
    )
    assert await value(sandbox, "%cd /") == "/"
    assert await value(sandbox, "print(os.getcwd())\n%cd -q {os.environ['HOME']}") == "/"


async def test_modules_of_the_working_directory_can_be_imported(sandbox: RemoteSandbox) -> None:
    await sandbox.upload("my_module.py", b"answer = 42")
    assert await value(sandbox, "import my_module; my_module.answer") == "42"


async def test_background_output_belongs_to_the_next_result(sandbox: RemoteSandbox) -> None:
    """Here the output surely comes between two calls: bash waits until it was written."""
    for start in (
        "import threading; threading.Thread(target=background).start()",
        "import multiprocessing; multiprocessing.get_context('fork').Process("
        "target=background).start()",
    ):
        assert (
            await value(
                sandbox,
                "import os, time\n"
                "def background():\n"
                "    while not os.path.exists('go'): time.sleep(0.001)\n"
                "    print('background')\n"
                "    os.remove('go')\n" + start,
            )
            == ""
        )
        await output(sandbox, "touch go; while [ -e go ]; do :; done")
        assert await value(sandbox, "print('main')") == "background\nmain"


async def test_images_come_in_addition_to_the_text(sandbox: RemoteSandbox) -> None:
    await sandbox.upload("dot.png", PNG)
    result = await ipython(
        sandbox,
        "from IPython.display import *\nprint('text')\ndisplay(Image('dot.png'))\nImage('dot.png')",
    )
    assert result.output.startswith("text\n<IPython.core.display.Image object>\n")
    dot = {"mime": "image/png", "base64": base64.b64encode(PNG).decode()}
    assert result.data["images"] == [dot, dot]
    assert (await ipython(sandbox, "1")).data["images"] == []


@pytest.mark.parametrize(
    ("code", "n_images"),
    [
        ("for _ in range(3): dot()", 3),
        ("dot(); clear_output(); dot()", 1),
        ("dot(); clear_output()", 0),
        ("dot(); clear_output(wait=True)", 1),
        ("for _ in range(50): clear_output(wait=True); dot()", 1),
        ("h = dot(display_id=True)\nfor _ in range(50): h.update(Image('dot.png'))", 1),
    ],
)
async def test_displays_are_cleared_and_updated(
    sandbox: RemoteSandbox, code: str, n_images: int
) -> None:
    await sandbox.upload("dot.png", PNG)
    definitions = (
        "from IPython.display import *\n"
        "def dot(**arguments): return display(Image('dot.png'), **arguments)\n"
    )
    result = await ipython(sandbox, definitions + code)
    assert (result.data["status"], len(result.data["images"])) == ("ok", n_images)


async def test_excess_and_oversized_images_are_dropped_with_a_note(
    sandbox: RemoteSandbox,
) -> None:
    await sandbox.upload("dot.png", PNG)
    many = await ipython(
        sandbox, "from IPython.display import *\nfor _ in range(20): display(Image('dot.png'))"
    )
    assert len(many.data["images"]) == 16
    assert many.output.count("dropped") == 4
    large = await ipython(sandbox, f"display(Image(data={PNG!r} + bytes(10**7), format='png'))")
    assert large.data["images"] == []
    assert "image/png dropped" in large.output


async def test_the_kernel_leaves_no_files_in_the_working_directory() -> None:
    async with running("process") as sandbox:
        await value(sandbox, "1")
        assert await output(sandbox, "ls -A") == ""


async def test_wrong_arguments_are_answered_with_an_error(sandbox: RemoteSandbox) -> None:
    for arguments in ({}, {"code": 1}, {"code": "1", "restart": "yes"}):
        result = await sandbox.call_tool("ipython", arguments, timeout_s=20)
        assert result.is_error


async def test_truncation_keeps_head_and_tail(sandbox: RemoteSandbox) -> None:
    result = await ipython(sandbox, "print('first'); print('x' * 10**6); 'last'")
    assert result.data["truncated"]
    assert result.output.startswith("first\n")
    assert result.output.endswith("'last'\n")
    assert len(result.output) < 5000


DESCRIPTORS = """
import os, socket
kinds = set()
for name in os.listdir("/proc/self/fd"):
    try:
        with socket.socket(fileno=os.dup(int(name))) as inherited:
            kinds.add(inherited.type)
    except OSError:
        pass
print(socket.SOCK_STREAM in kinds, socket.SOCK_SEQPACKET in kinds)
"""


async def test_the_kernel_does_not_inherit_the_sockets_of_the_server(
    sandbox: RemoteSandbox,
) -> None:
    """The kernel's own sockets are stream sockets; the server passes descriptors over SEQPACKET."""
    assert await value(sandbox, DESCRIPTORS) == "True False"


async def test_a_long_traceback_shows_its_head_and_tail(sandbox: RemoteSandbox) -> None:
    code = "def odd(n): return even(n + 1)\ndef even(n): return odd(n + 1)\nodd(0)"
    result = await ipython(sandbox, code)
    assert len(result.output) < 8000
    head, _, tail = result.output.partition("lines of the traceback are left out ...]\n")
    assert "Traceback (most recent call last)" in head
    assert "odd(0)" in head
    assert "RecursionError: maximum recursion depth exceeded" in tail.splitlines()[-1]


async def test_shorter_tracebacks_are_complete(sandbox: RemoteSandbox) -> None:
    frames = "".join(f"def f{n + 1}(): f{n}()\n" for n in range(8))
    result = await ipython(sandbox, f"def f0(): 1 / 0\n{frames}f8()")
    assert "left out" not in result.output
    assert all(f"f{n}()" in result.output for n in range(8))
