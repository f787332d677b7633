import errno

import pytest

from prorl_service.sandbox.base import SandboxLimits
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from tests.sandbox.sandboxes import Kind, bash, output, running

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("content", [b"", b"text\n", bytes(range(256)) * 4000])
async def test_files_come_back_byte_for_byte(sandbox: RemoteSandbox, content: bytes) -> None:
    for written in (content + b"longer", content):
        await sandbox.upload("made/for/it.bin", written)
    assert await sandbox.download("made/for/it.bin") == content
    assert await output(sandbox, "wc -c <made/for/it.bin") == str(len(content))


async def test_relative_paths_start_at_the_working_directory(sandbox: RemoteSandbox) -> None:
    await bash(sandbox, "mkdir sub; cd sub; echo made by bash >there")
    assert await sandbox.download("sub/there") == b"made by bash\n"
    directory = await output(sandbox, "pwd")
    assert await sandbox.download(f"{directory}/there") == b"made by bash\n"


async def test_faults_of_a_file_are_os_errors(sandbox: RemoteSandbox) -> None:
    await bash(
        sandbox, "mkdir directory; mkfifo fifo; ln -s loop loop; echo >file; truncate -s 7M big"
    )
    with pytest.raises(FileNotFoundError, match="no/such"):
        await sandbox.download("no/such")
    with pytest.raises(IsADirectoryError):
        await sandbox.download("directory")
    with pytest.raises(IsADirectoryError):
        await sandbox.upload("directory", b"")
    with pytest.raises(NotADirectoryError):
        await sandbox.download("file/below")
    for path in ("fifo", "loop", "/dev/zero", "/dev/tty"):
        with pytest.raises(OSError, match=path):
            await sandbox.download(path)
    with pytest.raises(OSError, match="fifo"):
        await sandbox.upload("fifo", b"x")
    assert len(await sandbox.download("big")) == 7 << 20
    assert len(await sandbox.download("big", max_bytes=7 << 20)) == 7 << 20
    for path, max_bytes in (("big", (7 << 20) - 1), ("big", 10), ("/proc/self/status", 10)):
        with pytest.raises(OSError, match="larger than") as caught:
            await sandbox.download(path, max_bytes=max_bytes)
        assert caught.value.errno == errno.EFBIG


async def test_a_file_beyond_the_limit_is_refused(kind: Kind) -> None:
    async with running(kind, SandboxLimits(file_mb=1)) as sandbox:
        await sandbox.upload("file", bytes(1 << 20))
        result = await bash(sandbox, "head -c 2000000 /dev/zero >more")
        assert result.is_error
        assert len(await sandbox.download("more")) == 1 << 20
        with pytest.raises(OSError, match="too large"):
            await sandbox.upload("file", bytes((1 << 20) + 1))
        with pytest.raises(OSError, match="larger than"):
            await sandbox.download("/bin/bash")
