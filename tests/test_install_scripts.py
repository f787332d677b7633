"""Install scripts: they do nothing where sandboxes work, and refuse what they cannot handle."""

import fcntl
import os
import runpy
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import ran

pytestmark = pytest.mark.processes

SCRIPTS = Path(__file__).parents[1] / "scripts"
SHELL_SCRIPTS = [
    path
    for path in sorted(SCRIPTS.iterdir())
    if path.is_file() and path.read_text().startswith("#!/bin/sh\n")
]


def run(*argv: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return ran(*argv, env={**os.environ, **variables})


@pytest.mark.parametrize("script", SHELL_SCRIPTS, ids=lambda path: path.name)
def test_shell_scripts_parse(script: Path) -> None:
    assert run("sh", "-n", script).stderr == ""


def test_nothing_is_done_where_sandboxes_work() -> None:
    done = run(SCRIPTS / "install-sandbox")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_scripts_say_what_to_do_without_a_package_manager(tmp_path: Path) -> None:
    tools = "sh dirname id mktemp rm chmod cat uname test setpriv env"
    for name in tools.split():
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    for script, hint in (
        ("install-bubblewrap", "dnf install bubblewrap"),
        ("install-apptainer", "module load apptainer"),
        ("install-podman", "dnf install podman"),
        ("install-buildah", "dnf install buildah"),
    ):
        done = run(SCRIPTS / script, PATH=str(tmp_path))
        assert done.returncode == 1
        assert hint in done.stderr


def test_a_command_as_nobody_has_no_privileges() -> None:
    done = run(SCRIPTS / "as-nobody", "cat", "/proc/self/status")
    status = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    assert set(status["Uid"].split()) == {str(os.geteuid() or 65534)}
    assert int(status["CapEff"], 16) == 0


CUDA = "nvidia-cudnn-cu13==9"
CPU_INDEX = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]


@pytest.mark.parametrize(
    ("requires", "has_gpu", "is_reached", "options"),
    [
        pytest.param(CUDA, False, True, CPU_INDEX, id="CUDA without a GPU"),
        pytest.param(CUDA, False, False, [], id="CUDA and no index of CPU builds"),
        pytest.param(CUDA, True, True, [], id="CUDA with a GPU"),
        pytest.param("sympy>=1.13.3", False, True, [], id="an index that offers a CPU build"),
    ],
)
def test_torch_is_a_cpu_build_where_no_gpu_is(
    tmp_path: Path, requires: str, has_gpu: bool, is_reached: bool, options: list[str]
) -> None:
    python, log = tmp_path / "python", tmp_path / "log"
    python.write_text(
        f"""#!/bin/sh
        echo "$@" >>{log}
        case "$*" in
        *--dry-run*) echo '{{"requires_dist": ["{requires}"]}}' ;;
        *urlopen*) exit {0 if is_reached else 1} ;;
        esac
        """
    )
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nexit {0 if has_gpu else 9}\n")
    for program in (python, tmp_path / "nvidia-smi"):
        program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = run(SCRIPTS / "install-torch", python, "constraints.txt", PATH=path)
    assert done.returncode == 0, done.stderr
    last = log.read_text().splitlines()[-1].split()
    assert last[last.index("constraints.txt") + 1 :] == [*options, "torch"]


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt-get")
def test_the_mirror_is_the_debian_archive_of_this_machine(apt: Path) -> None:
    add_source(apt, "a", "http://third.example/debian", origin="Third", label="Debian")
    add_source(apt, "b", "http://mirror.example/security", origin="Debian", label="Debian-Security")
    done = run(SCRIPTS / "debian-mirror", APT_CONFIG=str(apt / "apt.conf"))
    assert done.returncode == 1
    assert "apt knows no Debian archive here" in done.stderr

    add_source(apt, "c", "http://mirror.example/debian", origin="Debian", label="Debian")
    done = run(SCRIPTS / "debian-mirror", APT_CONFIG=str(apt / "apt.conf"))
    assert (done.stdout, done.stderr) == ("http://mirror.example/debian/\n", "")


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    """A configuration of apt that knows no source yet."""
    for name in ("sources", "lists/partial"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "apt.conf").write_text(
        f'Dir::Etc::SourceList "/dev/null"; Dir::Etc::SourceParts "{tmp_path}/sources";'
        f'Dir::State::Lists "{tmp_path}/lists"; Dir::Cache "{tmp_path}";'
    )
    return tmp_path


def add_source(apt: Path, name: str, url: str, *, origin: str, label: str) -> None:
    """Adds a source as `apt-get update` would leave it; source "a" has apt's newer format."""
    if name == "a":
        source = f"Types: deb\nURIs: {url}\nSuites: stable\nComponents: main\n"
        (apt / "sources" / f"{name}.sources").write_text(source)
    else:
        (apt / "sources" / f"{name}.list").write_text(f"deb {url} stable main\n")
    lists = apt / "lists" / url.removeprefix("http://").replace("/", "_")
    architecture = run("dpkg", "--print-architecture").stdout.strip()
    Path(f"{lists}_dists_stable_main_binary-{architecture}_Packages").touch()
    Path(f"{lists}_dists_stable_Release").write_text(
        f"Origin: {origin}\nLabel: {label}\nSuite: stable\nDate: Sat, 01 Jan 2022 00:00:00 UTC\n"
        f"SHA256:\n {'0' * 64} 1 main/binary-{architecture}/Packages\n"
    )


PoolKey = tuple[bytes, bytes]
"""A symbol, and the version of the C library that it is bound to."""


def program(*needs: PoolKey) -> bytes:
    """Returns a minimal ELF file for x86-64 that needs these symbols, and GLIBC_2.2.5."""
    versions = [b"GLIBC_2.2.5", *dict.fromkeys(version for _, version in needs)]
    strings = b"\0" + b"\0".join([*versions, *(symbol for symbol, _ in needs)]) + b"\0"
    at = {text: strings.index(b"\0" + text + b"\0") + 1 for text in strings.split(b"\0") if text}
    records = b"".join(
        struct.pack("<IHHII", 0, 0, 2 + i, at[version], 16) for i, version in enumerate(versions)
    )
    sections = {
        b".dynstr": strings,
        b".dynsym": bytes(24) + b"".join(struct.pack("<I20x", at[symbol]) for symbol, _ in needs),
        b".gnu.version": struct.pack("<H", 0)
        + b"".join(struct.pack("<H", 2 + versions.index(version)) for _, version in needs),
        b".gnu.version_r": struct.pack("<HHIII", 1, len(versions), 0, 16, 0) + records,
    }
    sections[b".shstrtab"] = b"\0".join([*sections, b".shstrtab"]) + b"\0"
    body, headers, offset = b"", b"", 64
    for name, content in sections.items():
        name_at = sections[b".shstrtab"].index(name + b"\0")
        headers += struct.pack("<IIQQQQ24x", name_at, 1, 0, 0, offset, len(content))
        body += content
        offset += len(content)
    header = struct.pack("<6s10xHHI", b"\x7fELF\2\1", 3, 62, 1) + struct.pack("<QQQ", 0, 0, offset)
    tail = struct.pack("<IHHHHHH", 0, 64, 0, 0, 64, len(sections), len(sections) - 1)
    return header + tail + body + headers


def rebind(directory: Path) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, SCRIPTS / "retarget_glibc.py", directory)


def test_new_names_of_old_functions_are_rebound(tmp_path: Path) -> None:
    needs = [(b"__isoc23_strtol", b"GLIBC_2.38"), (b"unshare", b"GLIBC_2.4")]
    program_file = tmp_path / "program"
    program_file.write_bytes(program(*needs))
    (tmp_path / "script").write_text("#!/bin/sh\n")
    assert rebind(tmp_path).returncode == 0
    elf = runpy.run_path(str(SCRIPTS / "retarget_glibc.py"))["Elf"](program_file.read_bytes())
    versions = {index: name for _, index, name in elf.needed_versions()}
    assert [(symbol, versions[index]) for _, index, symbol in list(elf.symbols())[1:]] == [
        (b"strtol", b"GLIBC_2.2.5"),
        (b"unshare", b"GLIBC_2.4"),
    ]
    # The hash by which the loader looks up GLIBC_2.2.5, as in every program of this architecture.
    assert program_file.read_bytes().count(struct.pack("<IHH", 0x09691A75, 0, 3)) == 1
    assert (tmp_path / "script").read_text() == "#!/bin/sh\n"


@pytest.mark.parametrize(
    "damage",
    [
        lambda: program((b"pidfd_spawn", b"GLIBC_2.39")),
        lambda: program((b"__isoc23_scanf", b"GLIBC_2.38")),
        lambda: program((b"anything", b"GLIBC_ABI_DT_RELR")),
        lambda: b"\x7fELF\1" + bytes(60),
    ],
)
def test_a_program_that_needs_more_is_refused_and_nothing_changes(
    tmp_path: Path, damage: Callable[[], bytes]
) -> None:
    good, bad = program((b"__isoc23_strtol", b"GLIBC_2.38")), damage()
    (tmp_path / "a").write_bytes(good)
    (tmp_path / "b").write_bytes(bad)
    done = rebind(tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{tmp_path}/b: ")
    assert (tmp_path / "a").read_bytes() == good


as_root_with_apt = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("apt-get") is None, reason="only root can lock apt"
)


@pytest.fixture
def own_apt(tmp_path: Path) -> Path:
    """Directories of apt to lock: the system's installed packages, and an empty repository."""
    for name in ("state/lists/partial", "cache/archives/partial", "sources", "dpkg", "source"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy("/var/lib/dpkg/status", tmp_path / "dpkg/status")
    (tmp_path / "source/Packages").touch()
    (tmp_path / "sources/own.list").write_text(f"deb [trusted=yes] file:{tmp_path}/source ./\n")
    (tmp_path / "conf").write_text(
        f'Dir::State "{tmp_path}/state"; Dir::State::status "{tmp_path}/dpkg/status";\n'
        f'Dir::Cache "{tmp_path}/cache"; Dir::Etc::SourceList "/dev/null";\n'
        f'Dir::Etc::SourceParts "{tmp_path}/sources"; APT::Sandbox::User "";\n'
    )
    return tmp_path


@as_root_with_apt
@pytest.mark.parametrize("lock", ["state/lists/lock", "cache/archives/lock"])
def test_packages_are_installed_once_another_program_is_done(own_apt: Path, lock: str) -> None:
    with open(own_apt / lock, "w") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        script = subprocess.Popen(
            [SCRIPTS / "apt-install", "bash"],
            env={**os.environ, "APT_CONFIG": str(own_apt / "conf")},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert script.stderr is not None
        assert "waiting for another program" in script.stderr.readline()
    assert (script.communicate(timeout=60)[1], script.returncode) == ("", 0)


@as_root_with_apt
def test_an_error_that_waiting_cannot_fix_is_reported_immediately(own_apt: Path) -> None:
    done = run(SCRIPTS / "apt-get-waiting", "frobnicate", APT_CONFIG=str(own_apt / "conf"))
    assert done.returncode == 1
    assert "Invalid operation frobnicate" in done.stderr
