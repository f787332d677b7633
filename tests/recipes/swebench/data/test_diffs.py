"""Patches made as text, applied by the real git."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.swebench.data.diffs import file_diff, reversed_patch

LINES = st.lists(st.sampled_from(["", "a", "-b", "+c", "--- d", "@@ e", "\x0cf"]), max_size=12)
TEXT = st.one_of(
    st.none(), st.builds("\n".join, LINES), st.builds("\n".join, LINES.map(lambda x: [*x, ""]))
)


class Repository:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.git("init", "-q")

    def git(self, *arguments: str, stdin: str = "") -> str:
        command = ["git", "-c", "core.autocrlf=false", "-c", "user.name=t", "-c", "user.email=t@t"]
        done = subprocess.run(
            [*command, *arguments],
            cwd=self.path,
            input=stdin.encode(),
            check=True,
            capture_output=True,
        )
        return done.stdout.decode()

    def tree(self) -> str:
        self.git("add", "-A")
        return self.git("write-tree")

    def put(self, files: dict[str, str | None]) -> None:
        for name, text in files.items():
            path = self.path / name
            if text is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(text.encode())


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("repository"))


@pytest.mark.processes
@settings(max_examples=25)
@given(old=TEXT, new=TEXT)
def test_a_diff_turns_old_into_new_and_its_reverse_undoes_it(
    repository: Repository, old: str | None, new: str | None
) -> None:
    patch = file_diff("f.py", old, new)
    if not patch:
        assert old == new
        return
    repository.put({"f.py": new})
    wanted = repository.tree()
    repository.put({"f.py": old})
    base = repository.tree()
    repository.git("apply", "--whitespace=nowarn", stdin=patch)
    assert repository.tree() == wanted
    repository.git("apply", "--whitespace=nowarn", stdin=reversed_patch(patch))
    assert repository.tree() == base


@pytest.mark.processes
def test_git_diffs_are_reversed_with_modes_and_renames(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    text = "".join(f"{n}\n" for n in range(30))
    repository.put({"moved.py": text, "gone.py": "x\n", "same.py": "1\n2", "mode.py": "m\n"})
    base = repository.tree()
    repository.git("commit", "-q", "-m", "base")
    repository.put({"moved.py": None, "gone.py": None, "same.py": "2\n1\n", "added.py": "y"})
    repository.put({"there.py": text.replace("7\n", "8\n")})
    (tmp_path / "mode.py").chmod(0o755)
    repository.git("add", "-A")
    patch = repository.git("diff", "--cached", "-M", "HEAD")
    assert "rename from moved.py" in patch
    assert "old mode 100644" in patch
    repository.git("apply", "--index", stdin=reversed_patch(patch))
    assert repository.tree() == base
    assert reversed_patch(reversed_patch(patch)) == patch


@pytest.mark.parametrize("line", ["GIT binary patch", "copy from a.py"])
def test_a_patch_that_cannot_be_reversed_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="cannot be reversed"):
        reversed_patch(f"diff --git a/a b/a\n{line}\n")
