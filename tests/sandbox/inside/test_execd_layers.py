"""What was written in one sandbox, in another: whole, without what a guard refuses."""

import asyncio
import errno
import io
import tarfile
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox.base import SandboxLimits, SandboxProvider
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from prorl_service.sandbox.layers import Guard, Layer
from tests.sandbox.images.debian import debian_image
from tests.sandbox.sandboxes import LIMITS, bash, new_provider, output, running, started

pytestmark = [pytest.mark.processes, pytest.mark.unprivileged]

MOST = 64 << 20
IMAGE_LIMITS = SandboxLimits(memory_mb=512, processes=64, disk_mb=64, file_mb=16)
GUARD = Guard(
    never=("tests", "logs/verifier"),
    work=("app/", "usr/local/bin/tool", "opt/data", "root"),
    protected=("app/.venv", "root/."),
    allow=("srv/*.txt",),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def apptainer() -> AsyncIterator[SandboxProvider]:
    async with new_provider("apptainer") as provider:
        yield provider


def layer_of(*entries: tarfile.TarInfo) -> Layer:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for entry in entries:
            tar.addfile(entry)
    layer = Layer()
    layer.append(content.getvalue())
    return layer


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


async def saved(sandbox: RemoteSandbox) -> Layer:
    await sandbox.end_processes()
    return await sandbox.save_layer(max_bytes=MOST)


def names(layer: Layer) -> Sequence[str]:
    [piece] = layer.pieces()
    with tarfile.open(fileobj=io.BytesIO(piece)) as tar:
        return tar.getnames()


async def moved(provider: SandboxProvider, script: str, guard: Guard, look: str) -> str:
    """Runs `script` in one sandbox, and `look` in another that gets what was written."""
    async with started(provider, IMAGE_LIMITS) as first:
        await output(first, script)
        layer = await saved(first)
    async with started(provider, IMAGE_LIMITS) as second:
        refused = await second.restore_layer(layer, guard)
        left_out = [path if files == 1 else f"{path} {files}" for path, files in refused.items()]
        return f"{await output(second, look)}|{','.join(sorted(left_out))}"


async def test_files_of_one_sandbox_are_in_another(isolating: SandboxProvider) -> None:
    script = """
        mkdir -p tree/deep /tmp/t; echo one > tree/deep/file; chmod 750 tree/deep/file
        ln -s deep/file tree/link; echo two > /tmp/t/two; touch -d @1000000000 tree/old
    """
    look = """
        stat -c '%n %a %s' tree/deep/file; readlink tree/link
        cat /tmp/t/two tree/link; date -r tree/old +%s
    """
    expected = "tree/deep/file 750 4\ndeep/file\ntwo\none\n1000000000|"
    assert await moved(isolating, script, Guard(), look) == expected


MOVED: dict[str, tuple[Guard, str, str, str]] = {
    "what was deleted of the image stays deleted": (
        Guard(),
        "rm /etc/debian_version; rm -r /usr/share/doc; mkdir /usr/share/doc; >/usr/share/doc/new",
        "ls /etc/debian_version 2>/dev/null; ls /usr/share/doc; ls -d /usr/share/debconf",
        "new\n/usr/share/debconf|",
    ),
    "a directory takes the place of a file, and the reverse": (
        Guard(),
        "rm /etc/debian_version; mkdir /etc/debian_version; rm -r /etc/apt; echo x > /etc/apt",
        "stat -c %F /etc/debian_version /etc/apt",
        "directory\nregular file|",
    ),
    "large files, and links to them, go in pieces": (
        Guard(),
        """
            mkdir -p /opt; for i in 1 2 3 4 5; do head -c 9000000 /dev/zero > /opt/z$i; done
            for i in 1 2 3 4 5; do ln /opt/z$i /y$i; done; mkdir /usr/new
            echo x > /usr/new/a; ln /usr/new/a /usr/new/b; echo end > /zz
        """,
        "stat -c '%h %s' /y? /opt/z? | sort -u; cat /usr/new/b /zz",
        "2 9000000\nx\nend|",
    ),
    "work that is named passes as settings": (
        Guard(work=("app", "app/conftest.py")),
        "mkdir /app; echo x > /app/conftest.py",
        "cat /app/conftest.py",
        "x|",
    ),
    "directories that are not work stay as they are": (
        GUARD,
        "mkdir -p /app/a /var/new; chmod 700 /usr /app/a; echo x > /app/file",
        "stat -c %a /usr /app/a; ls -d /var/new 2>/dev/null; cat /app/file",
        "755\n700\nx|",
    ),
    "work that was deleted stays deleted": (
        Guard(work=("etc/",), protected=("etc/apt",)),
        "rm -r /etc/* 2>/dev/null; mkdir /etc/new; touch /etc/new/a",
        "ls /etc/debian_version /etc/new 2>/dev/null; ls -d /etc/apt",
        "/etc/new:\na\n/etc/apt|etc/apt",
    ),
}


@pytest.mark.parametrize(("guard", "script", "look", "expected"), MOVED.values(), ids=MOVED)
async def test_another_sandbox_gets_what_was_written(
    apptainer: SandboxProvider, guard: Guard, script: str, look: str, expected: str
) -> None:
    assert await moved(apptainer, script, guard, look) == expected


async def test_nothing_runs_when_processes_were_ended(isolated: RemoteSandbox) -> None:
    await output(isolated, "(setsid sleep 1000 > /dev/null 2>&1 &); sleep 1000 & disown; x=1")
    await isolated.end_processes()
    left = await bash(isolated, "echo ${x-gone}; cat /proc/[0-9]*/comm | grep -c sleep")
    assert left.output.startswith("gone\n0\n")
    assert left.data["restarted"]


async def test_suspended_processes_rest_and_go_on(isolated: RemoteSandbox) -> None:
    beat = "(while :; do date +%s%N > beat; sleep 0.01; done) > /dev/null 2>&1 & x=kept"
    await output(isolated, f"{beat}; until [ -s beat ]; do sleep 0.01; done")
    async with isolated.suspended():
        first = await isolated.download("beat")
        await asyncio.sleep(0.3)
        assert await isolated.download("beat") == first
    assert await output(isolated, "sleep 0.2; echo $x") == "kept"
    assert await isolated.download("beat") != first


async def test_a_fork_bomb_is_ended(isolated: RemoteSandbox) -> None:
    bomb = asyncio.create_task(bash(isolated, "f() { f | f & }; f; sleep 1000"))
    await asyncio.sleep(0.5)
    await isolated.end_processes()
    await bomb
    assert await output(isolated, "echo fine") == "fine"


async def test_a_layer_without_changes_has_only_directories_of_ours(
    isolated: RemoteSandbox,
) -> None:
    expected = {"workspace", "tmp", "dev", "proc", ".prorl", ".prorl/programs"}
    assert set(names(await saved(isolated))) <= expected


async def test_a_layer_that_is_too_large_says_so(isolated: RemoteSandbox) -> None:
    await output(isolated, "head -c 1000000 /dev/urandom > big")
    with pytest.raises(OSError, match="File too large") as caught:
        await isolated.save_layer(max_bytes=100_000)
    assert caught.value.errno == errno.EFBIG


async def test_sockets_fifos_and_unreadable_files_are_left_out(
    apptainer: SandboxProvider,
) -> None:
    async with started(apptainer, IMAGE_LIMITS) as sandbox:
        await output(sandbox, "mkdir /s; mkfifo /s/fifo; echo x > /s/closed; chmod 0 /s/closed")
        written = [name for name in names(await saved(sandbox)) if name.startswith("s")]
        assert written == ["s", "s/closed"]


@pytest.mark.parametrize(
    ("script", "refused"),
    [
        ("mkdir /tests; echo x > /tests/test.sh; echo x > /tests/b", "tests 2"),
        ("mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt", "logs"),
        ("ln -s /tmp /logs", "logs"),
        ("echo x > /usr/bin/env; rm /bin/sh", "usr/bin/env,usr/bin/sh"),
        ("mkdir -p /usr/local/bin; echo x > /usr/local/bin/tool", ""),
        ("mkdir -p /usr/local/bin; echo x > /usr/local/bin/env", "usr/local/bin/env"),
        ("mkdir -p /opt/data/x; echo x > /opt/data/x/y; echo x > /opt/z", "opt/z"),
        ("mkdir -p /var/new/a; echo x > /var/new/a/b; echo x > /var/new/c", "var/new 2"),
        ("d=/var/new/lib/site-packages; mkdir -p $d/p; echo x > $d/p/a; echo x > $d/b",
         "var/new/lib/site-packages/b,var/new/lib/site-packages/p"),
        ("echo x > /etc/ld.so.preload; touch /conftest.py", "conftest.py,etc/ld.so.preload"),
        ("mkdir -p /srv/a; echo x > /srv/a/b.txt; echo x > /srv/b.sh", "srv/b.sh"),
        ("mkdir -p /app/.venv/bin; echo x > /app/.venv/bin/pytest",
         "app/.venv/bin/pytest"),
        ("mkdir -p /root/.config/pip; echo x > /root/.config/pip/pip.conf; echo x > ~/a",
         "root/.config"),
        ("mkdir -p /app/tests; cd /app; touch ConfTest.py tests/conftest.py",
         "app/ConfTest.py,app/tests/conftest.py"),
        ("mkdir -p /app/x.DIST-info; cd /app; touch x.DIST-info/entry_points.txt a.py",
         "app/x.DIST-info/entry_points.txt"),
        ("mkdir -p /app/usercustomize; touch /app/usercustomize/__init__.py",
         "app/usercustomize/__init__.py"),
        ("mkdir -p /app; cd /app; git init -q --template=; mkdir .git/hooks; >.git/hooks/update",
         "app/.git/config,app/.git/hooks/update"),
        ("mkdir /opt/work; ln -s /opt/work /app", "app"),
        ("rm -r /usr/share/debconf; mkdir /usr/share/debconf; rm -r /var/lib",
         "usr/share/debconf,var/lib"),
    ],
)  # fmt: skip
async def test_only_work_passes_a_guard(
    apptainer: SandboxProvider, script: str, refused: str
) -> None:
    assert await moved(apptainer, script, GUARD, "true") == f"|{refused}"


@pytest.mark.parametrize(
    ("target", "is_restored"),
    [
        ("a/file", True),
        ("../../usr/bin/env", True),
        ("/usr/bin/env", True),
        ("../../tests/expected", False),
        ("/tests", False),
        ("/", False),
        ("../..", False),
        ("/proc/self/root/tests", False),
        ("/logs/verifier/reward.txt", False),
        ("other/../../tests", False),
    ],
)
async def test_no_link_of_work_leads_to_what_is_closed(
    apptainer: SandboxProvider, target: str, is_restored: bool
) -> None:
    script = f"mkdir -p /app/sub; ln -s {target} /app/sub/link"
    found = await moved(apptainer, script, GUARD, "readlink /app/sub/link; true")
    assert found == (f"{target}|" if is_restored else "|app/sub/link")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "a//b"])
async def test_a_layer_that_leaves_the_root_is_refused(isolated: RemoteSandbox, name: str) -> None:
    with pytest.raises(OSError, match="not permitted") as caught:
        await isolated.restore_layer(layer_of(tarfile.TarInfo(name)), Guard())
    assert caught.value.errno == errno.EPERM


async def test_links_of_a_layer_are_not_followed(isolated: RemoteSandbox) -> None:
    to_workspace = link("tmp/link", "/workspace", tarfile.SYMTYPE)
    layer = layer_of(to_workspace, tarfile.TarInfo("tmp/link/file"))
    assert await isolated.restore_layer(layer, Guard()) == {"tmp/link/file": 1}
    assert await output(isolated, "ls /workspace") == ""


async def test_hard_links_stay_one_file(isolating: SandboxProvider) -> None:
    script = """
        head -c 1000000 /dev/urandom > file; mkdir links /tmp/t
        for i in $(seq 119); do ln file links/$i; done
        echo one > /tmp/t/one; ln /tmp/t/one /tmp/t/two; chmod 640 /tmp/t/two
    """
    look = """
        stat -c %h file; stat -c %i file links/* | sort -u | wc -l; stat -c %s links/119
        stat -c '%h %a' /tmp/t/one; cat /tmp/t/two
    """
    async with started(isolating, IMAGE_LIMITS) as sandbox:
        await output(sandbox, script)
        assert (await saved(sandbox)).size_bytes < 2_000_000
    assert await moved(isolating, script, Guard(), look) == "120\n1\n1000000\n2 640\none|"


@pytest.mark.parametrize(
    ("script", "kept", "refused"),
    [
        ("echo x > /app/a; ln /app/a /conftest.py", "/app/a", "conftest.py"),
        ("echo x > /app/a; mkdir /tests; ln /app/a /tests/b", "/app/a", "tests"),
        ("mkdir /abc; echo x > /abc/a; ln /abc/a /app/zz", "/app/zz", "abc"),
        ("echo x > /aa; ln /aa /app/conftest.py", "", "aa,app/conftest.py"),
    ],
)
async def test_a_guard_looks_at_each_name_of_a_file(
    apptainer: SandboxProvider, script: str, kept: str, refused: str
) -> None:
    look = "find /app /conftest.py /tests -type f 2>/dev/null; true"
    assert await moved(apptainer, f"mkdir /app; {script}", GUARD, look) == f"{kept}|{refused}"


@pytest.mark.parametrize("first", ["usr/bin/env", "etc/debian_version", "none", "etc", "bin/sh"])
async def test_a_link_to_what_no_layer_brought_is_refused(
    apptainer: SandboxProvider, first: str
) -> None:
    layer = layer_of(link("link", first, tarfile.LNKTYPE))
    async with started(apptainer, IMAGE_LIMITS) as sandbox:
        assert await sandbox.restore_layer(layer, Guard()) == {"link": 1}


async def test_a_sandbox_without_isolation_refuses() -> None:
    async with running("process") as sandbox:
        with pytest.raises(SandboxError, match="processes of its own"):
            await sandbox.end_processes()
        with pytest.raises(SandboxError, match="does not know what was written"):
            await sandbox.save_layer(max_bytes=MOST)


# --- users ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "shown"),
    [
        (None, "0 root /root"),
        ("root", "0 root /root"),
        ("games", "5 games /usr/games"),
        ("5", "5 games /usr/games"),
        ("1234:99", "1234  /root"),
    ],
)
async def test_commands_run_as_the_user_of_the_image(
    apptainer: SandboxProvider, user: str | None, shown: str
) -> None:
    sandbox = apptainer.create(image=str(debian_image()), limits=LIMITS, user=user)
    await sandbox.start()
    try:
        command = "echo $(id -u) $(getent passwd $(id -u) | cut -d: -f1) $HOME; touch /etc/mine"
        done = await sandbox.call_tool("bash", {"command": command}, timeout_s=20)
        assert done.output.split() == shown.split()
    finally:
        await sandbox.stop()


async def test_an_unknown_user_is_the_tasks_fault(apptainer: SandboxProvider) -> None:
    sandbox = apptainer.create(image=str(debian_image()), limits=LIMITS, user="nobody-knows")
    with pytest.raises(TaskError, match="no user 'nobody-knows'"):
        await sandbox.start()


async def test_a_user_needs_an_image() -> None:
    async with new_provider("bubblewrap") as provider:
        with pytest.raises(TaskError, match="one of an image"):
            provider.create(image=None, limits=LIMITS, user="games")
