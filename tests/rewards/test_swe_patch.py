"""Changes of a patch: which are protected, and which lines are signals."""

import pytest

from prorl_service.rewards.swe.patch import Change, changes, is_protected, patched_files, signals


def protected(path: str, mode: str = "100644", allowed: tuple[str, ...] = ()) -> bool:
    return is_protected(Change(path, "100644", mode), allowed=allowed, tests=["data/case.json"])


@pytest.mark.parametrize(
    "path",
    [
        *("conftest.py", "a/conftest.py", "pytest.ini", "setup.cfg", "tox.ini", "pyproject.toml"),
        *("tests/helper.py", "test/x.json", "a/test_b.py", "b_test.py", "tests.py", ".coveragerc"),
        *("src/sitecustomize.py", "usercustomize.py", "x.pth", "pytest.py", "_pytest/runner.py"),
        *("pluggy/__init__.py", "a/__pycache__/b.cpython-311.pyc", "a/b.so", "data/case.json"),
        *("unittest/case.py", "src/unittest.py", "sympy/utilities/runtests.py", "bin/test"),
        *("Conftest.py", "conftest.pyc", "sitecustomize/__init__.py", ".git/hooks/x"),
        "src/a.egg-info/entry_points.txt",
    ],
)
def test_files_that_influence_tests_are_protected(path: str) -> None:
    assert protected(path)


@pytest.mark.parametrize("path", ["src/a.py", "latest.py", "contest.py", "docs/testing.md", "x.c"])
def test_source_files_are_not_protected(path: str) -> None:
    assert not protected(path)


@pytest.mark.parametrize("path", ["data", "data/case.json/x"])
def test_a_path_that_collides_with_a_data_sets_test_is_protected(path: str) -> None:
    assert protected(path)
    assert not protected("data/case.json2")


def test_links_and_submodules_are_protected_and_removals_are_not() -> None:
    assert protected("a", "120000")
    assert protected("a", "160000")
    assert not protected("a", "000000")


def test_files_of_the_reference_patch_may_change_unless_they_are_tests() -> None:
    assert not protected("setup.cfg", allowed=("setup.cfg",))
    assert protected("data/case.json", allowed=("data/case.json",))
    assert protected("setup.cfg", "120000", allowed=("setup.cfg",))
    assert not protected("src/_pytest/a.py", allowed=("src/_pytest/",))
    assert protected("src/_pytest2/conftest.py", allowed=("src/_pytest",))


def test_changes_are_read_as_git_writes_them() -> None:
    raw = b":100644 000000 a b D\0old name\0:000000 100755 c d A\0new\n\xff\0"
    old, new = changes(raw)
    assert (old.path, old.is_new) == ("old name", False)
    assert (new.new_mode, new.is_new) == ("100755", True)
    assert new.path.encode(errors="surrogateescape") == b"new\n\xff"


def test_the_files_of_a_patch_are_listed() -> None:
    patch = "--- a/x.py\n+++ b/x.py\n--- /dev/null\n+++ b/y z.py\t\ndiff --git a/b.bin b/b.bin\n"
    assert patched_files(patch) == ["b.bin", "x.py", "y z.py"]


def test_signals_are_lines_that_were_added() -> None:
    assert signals(b"-import pytest\n import pytest\n+import os\n") == []
    assert signals(b"+import _pytest\n") == ["+import _pytest"]
