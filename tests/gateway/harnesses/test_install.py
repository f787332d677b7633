"""Trees of harnesses: whole or absent, readable, as recorded; with tiny packages of this disk."""

import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prorl_service.errors import ProRLError
from prorl_service.gateway.harnesses import install, store, trees
from prorl_service.gateway.harnesses.preset import Install
from tests.gateway.harnesses import tiny

pytestmark = [pytest.mark.processes, pytest.mark.slow]

INSTALL = (
    "import os, sys; from prorl_service.gateway.harnesses import install, preset;"
    "packages = preset.Install.model_validate_json(sys.argv[1]);"
    "install.install_packages('pi', packages, print)"
)
HANGS = "import pathlib, sys, time; pathlib.Path(sys.argv[3], 'half').touch(); time.sleep(60)\n"


@pytest.fixture
def packages(tmp_path: Path) -> Install:
    return tiny.packages(tmp_path)


def ignore(_: str) -> None:
    pass


def test_a_tree_is_whole_recorded_and_readable(store_of_its_own: Path, packages: Install) -> None:
    said: list[str] = []
    made = install.install_packages("pi", packages, said.append)
    assert made.path == store_of_its_own / "pi@1.0.0"
    assert [path.name for path in store_of_its_own.iterdir()] == ["pi@1.0.0"]
    assert (made.path / "node_modules/tiny-npm/cli.js").is_file()
    assert (made.path / "package-lock.json").is_file()
    assert (made.path / "site/tiny_pip.py").is_file()
    assert not (made.path / "node_modules/tiny-npm/docs").exists()
    assert not (made.path / "site/bin").exists()
    assert not list(made.path.rglob("ran")), "a package's script ran"
    record = made.record()
    assert record.packages["tiny-npm"].version == "1.0.0"
    assert record.packages["tiny-npm"].digest.startswith("sha512-")
    assert record.packages["tiny-pip"].digest.startswith("sha256-")
    assert record.python == store.PYTHON
    assert record.files == len(trees.digests(made.path))
    for path in (made.path, *made.path.rglob("*")):
        mode = path.stat().st_mode
        needed = 0o555 if stat.S_ISDIR(mode) else 0o444
        assert mode & needed == needed, path
    assert said[0] == "pi@1.0.0: npm installs tiny-npm (up to a minute)"
    assert said[-1].startswith("pi@1.0.0: 2 packages, 0 MB, ")


def test_npm_makes_the_same_tree_again(store_of_its_own: Path, packages: Install) -> None:
    from_npm = packages.model_copy(update={"pip": []})
    first = install.install_packages("pi", from_npm, ignore)
    digest = first.record().digest
    install.remove(first)
    assert install.install_packages("pi", from_npm, ignore).record().digest == digest


def test_changes_of_a_tree_are_found(store_of_its_own: Path, packages: Install) -> None:
    made = install.install_packages("pi", packages, ignore)
    assert install.verify(made) == []
    (made.path / "node_modules/tiny-npm/cli.js").write_text("changed")
    (made.path / "site/tiny_pip.py").unlink()
    (made.path / "new").write_text("")
    assert install.verify(made) == ["new", "node_modules/tiny-npm/cli.js", "site/tiny_pip.py"]
    (made.path / trees.MANIFEST).write_text("")
    assert install.verify(made) == [trees.MANIFEST]


@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_install_leaves_nothing(
    store_of_its_own: Path, packages: Install, tmp_path: Path, ended_by: signal.Signals
) -> None:
    environment = tiny.fake_npm(tmp_path / "bin", HANGS)
    command = [sys.executable, "-c", INSTALL, packages.model_dump_json()]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not list(store_of_its_own.glob(".making-*/half")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(ended_by)
    assert process.wait(60) != 0
    assert store.installed() == []
    left = [path.name for path in store_of_its_own.iterdir()]
    assert len(left) == (1 if ended_by is signal.SIGKILL else 0)
    made = install.install_packages("pi", packages, ignore)
    assert [*store_of_its_own.iterdir()] == [made.path]


def test_two_installs_at_once_make_one_tree(store_of_its_own: Path, packages: Install) -> None:
    command = [sys.executable, "-c", INSTALL, packages.model_dump_json()]
    both = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    assert [path.name for path in store_of_its_own.iterdir()] == ["pi@1.0.0"]
    assert install.verify(store.find("pi", "1.0.0")) == []


def test_a_client_that_fails_is_quoted(
    store_of_its_own: Path, packages: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "['npm warn old', 'npm error 404', 'npm error no such package', 'see the log']"
    fails = f"print(*{lines}, sep='\\n'); raise SystemExit(1)\n"
    monkeypatch.setenv("PATH", tiny.fake_npm(tmp_path / "bin", fails)["PATH"])
    with pytest.raises(ProRLError) as caught:
        install.install_packages("pi", packages, ignore)
    assert caught.value.message == "npm failed: npm error 404 | npm error no such package"
    assert list(store_of_its_own.iterdir()) == []


def test_an_old_python_is_an_error(store_of_its_own: Path, packages: Install) -> None:
    newer = packages.model_copy(update={"min_python": "3.99"})
    with pytest.raises(ProRLError, match=r"openhands needs Python 3\.99, and the service runs on"):
        install.install_packages("openhands", newer, ignore)
