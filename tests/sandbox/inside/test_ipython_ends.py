"""Code that does not end, kernels that die, and what survives."""

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from prorl_service.sandbox.base import SandboxLimits, ToolResult
from prorl_service.sandbox.host import spec
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from tests.sandbox.inside.conftest import IN_BUBBLEWRAP
from tests.sandbox.inside.test_cancel import cancelled
from tests.sandbox.inside.test_ipython import ipython, value
from tests.sandbox.inside.test_streaming import Viewer
from tests.sandbox.sandboxes import Kind, bash, output, running

pytestmark = [pytest.mark.processes, pytest.mark.unprivileged]


@pytest.fixture(scope="module", params=IN_BUBBLEWRAP[1:])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Kinds whose default has no Python of an image."""
    kind: Kind = request.param
    return kind


def descendants(sandbox: RemoteSandbox) -> list[psutil.Process]:
    found: list[psutil.Process] = psutil.Process(sandbox.server_pid).children(recursive=True)
    return found


def client_of(sandbox: RemoteSandbox) -> psutil.Process:
    [client] = [p for p in descendants(sandbox) if "client.py" in " ".join(p.cmdline())]
    return client


async def begun(sandbox: RemoteSandbox, code: str) -> asyncio.Task[ToolResult]:
    """Returns the call once its output was seen."""
    viewer = Viewer()
    arguments = {"code": f"import os, time\nprint('begun')\n{code}"}
    call = sandbox.call_tool("ipython", arguments, timeout_s=1000, on_output=viewer)
    running = asyncio.create_task(call)
    await viewer.sees(b"begun\n")
    return running


ENDLESS = [
    "import time; time.sleep(1000)",
    "while True: pass",
    "!sleep 1000",
    "import subprocess; subprocess.run(['sleep', '1000'])",
    "import asyncio; await asyncio.sleep(1000)",
    "import threading; threading.Event().wait()",
    "while True: print('y' * 1000)",
]


async def test_a_timeout_interrupts_the_code_and_keeps_the_state(sandbox: RemoteSandbox) -> None:
    await value(sandbox, "kept = 42")
    for code in ENDLESS:
        result = await ipython(sandbox, f"print('begun')\n{code}", timeout_s=1)
        assert result.is_error
        assert (result.data["status"], result.data["timed_out"]) == ("interrupted", True), code
        assert result.output.startswith("begun\n")
        assert result.output.endswith("[timed out after 1 s]")
        assert await value(sandbox, "kept") == "42"


async def test_code_that_ignores_the_interrupt_costs_the_kernel(sandbox: RemoteSandbox) -> None:
    await value(sandbox, "kept = 42")
    deaf = "import signal, time\nsignal.signal(2, signal.SIG_IGN)\nprint('begun')\ntime.sleep(1000)"
    result = await ipython(sandbox, deaf, timeout_s=2)
    assert (result.data["status"], result.data["timed_out"]) == ("restarted", True)
    assert result.output.startswith("begun\n[timed out after 2 s]\n[the kernel was ended by")
    assert (await ipython(sandbox, "kept")).data["status"] == "error"


async def test_a_cancelled_call_is_interrupted(sandbox: RemoteSandbox) -> None:
    await value(sandbox, "kept = 42")
    await cancelled(await begun(sandbox, "time.sleep(1000)"))
    assert await value(sandbox, "kept") == "42"


DEATHS = {
    "import os; os._exit(3)": "exited with code 3",
    "import os; os.kill(os.getpid(), 9)": "SIGKILL",
    "import os; os.killpg(0, 9)": "SIGKILL",
    "import os; os.kill(os.getppid(), 0); os.abort()": "SIGABRT",
    "import ctypes; ctypes.string_at(0)": "SIGSEGV",
}


async def test_the_death_of_the_kernel_is_reported_immediately(sandbox: RemoteSandbox) -> None:
    for code, death in DEATHS.items():
        result = await ipython(sandbox, f"print('begun')\n{code}", timeout_s=1000)
        assert result.is_error
        assert result.data["status"] == "restarted"
        assert result.output.startswith("begun\n[the kernel ")
        assert death in result.output
        assert await value(sandbox, "1 + 1") == "2"


async def test_a_death_between_calls_is_reported_by_the_next_call(sandbox: RemoteSandbox) -> None:
    await value(sandbox, "import os; kept = 42; pid = os.getpid()")
    pid = await value(sandbox, "pid")
    await bash(sandbox, f"kill -9 {pid}; while kill -0 {pid} 2>/dev/null; do :; done")
    result = await ipython(sandbox, "1 + 1")
    assert result.data["status"] == "ok"
    assert result.output.startswith("2\n[the kernel was ended by SIGKILL; ")
    assert await value(sandbox, "2") == "2"


async def test_the_death_of_the_client_counts_as_the_kernels(sandbox: RemoteSandbox) -> None:
    call = await begun(sandbox, "time.sleep(1000)")
    client_of(sandbox).kill()
    assert (await call).data["status"] == "restarted"
    assert await value(sandbox, "1 + 1") == "2"


async def test_restart_gives_a_new_kernel(sandbox: RemoteSandbox) -> None:
    await value(sandbox, "kept = 42")
    again = {"code": "print('kept' in dir())", "restart": True}
    result = await sandbox.call_tool("ipython", again, timeout_s=20)
    assert (result.output, result.data["status"]) == ("False\n", "ok")
    assert result.data["execution_count"] == 1


async def test_calls_wait_for_each_other_within_their_timeout(sandbox: RemoteSandbox) -> None:
    await value(sandbox, "import time; order = []")
    slow = asyncio.create_task(ipython(sandbox, "time.sleep(1); order.append(1)"))
    queued = asyncio.create_task(ipython(sandbox, "order.append(2)"))
    late = asyncio.create_task(ipython(sandbox, "order.append(3)", timeout_s=0.3))
    result = await late
    assert result.output == "[timed out after 0.3 s, before the kernel was free]"
    assert result.data["timed_out"]
    await asyncio.gather(slow, queued)
    assert await value(sandbox, "order") == "[1, 2]"


async def test_bash_and_files_work_while_the_kernel_runs(sandbox: RemoteSandbox) -> None:
    code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nopen('go').read()"
    waiting = asyncio.create_task(ipython(sandbox, code))
    assert await output(sandbox, "echo alive") == "alive"
    await sandbox.upload("going", b"gone")
    await output(sandbox, "mv going go")
    assert (await waiting).output == "'gone'\n"


async def test_output_is_seen_before_the_code_ends(sandbox: RemoteSandbox) -> None:
    call = await begun(sandbox, "while not os.path.exists('go'): pass")
    await sandbox.upload("go", b"")
    assert (await call).output == "begun\n"


FLOODS = [
    "print('x' * 10**8)",
    "for _ in range(100): print('x' * 10**6)",
    "'x' * 10**8",
    "raise ValueError('x' * 10**7)",
    "import subprocess; subprocess.run('head -c 100000000 /dev/zero', shell=True);",
    "from IPython.display import *\nfor i in range(10000): display(i)",
]


async def test_a_flood_of_output_takes_no_memory(kind: Kind) -> None:
    limits = SandboxLimits(memory_mb=1024, output_bytes=4096)
    async with running(kind, limits) as sandbox:
        for code in FLOODS:
            result = await ipython(sandbox, code, timeout_s=60)
            assert result.data["truncated"], result
            assert len(result.output) < 5000
        assert sandbox.server_pid is not None
        for pid in (sandbox.server_pid, client_of(sandbox).pid):
            assert peak_memory_mb(pid) < 80


def peak_memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


async def test_nothing_is_left_after_stop(kind: Kind) -> None:
    async with running(kind) as sandbox:
        await value(sandbox, "import subprocess; p = subprocess.Popen(['sleep', '1000'])")
        processes = descendants(sandbox)
        assert len(processes) >= 3
    assert not any(process.is_running() for process in processes)


async def test_a_full_sandbox_says_why_there_is_no_kernel() -> None:
    limits = SandboxLimits(memory_mb=512, processes=8, output_bytes=4096)
    async with running("bubblewrap", limits) as sandbox:
        await bash(sandbox, "python3 -c 'import os, time\nwhile os.fork(): pass\ntime.sleep(1000)'")
        result = await ipython(sandbox, "1", timeout_s=20)
        assert result.data["status"] == "restarted"
        assert "no kernel could be started: " in result.output


async def test_the_images_own_ipython_is_preferred_and_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The Python that runs these tests has ipykernel and matplotlib, as an image may."""
    monkeypatch.setattr(spec, "HOST_PATH", f"{sys.prefix}/bin:{spec.HOST_PATH}")
    async with running("process", SandboxLimits(memory_mb=4096)) as sandbox:
        assert await value(sandbox, "import sys; print(sys.prefix)") == sys.prefix
        result = await ipython(sandbox, "import matplotlib.pyplot as plt; plt.plot([1, 2]);")
        [image] = result.data["images"]
        assert image["mime"] == "image/png"
        assert result.output == "<Figure size 640x480 with 1 Axes>\n"
