"""A task's repository in a sandbox: what the model finds in it, and the patch taken out of it."""

import base64
import hashlib
import zlib
from collections.abc import AsyncIterator
from contextlib import nullcontext

import pytest

from prorl_service.agents.swe import repository
from prorl_service.agents.swe.data import SweData, SweEnvironment
from prorl_service.agents.swe.evaluation import OpenSandbox, grade_patch
from prorl_service.agents.swe.repository import apply_text, commit, extract_patch, prepare
from prorl_service.errors import EvaluatorError, TaskError
from prorl_service.rewards.swe.grade import SweOutcome
from prorl_service.rewards.swe.patch import MAX_PATCH_BYTES
from prorl_service.sandbox.base import SandboxLimits
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from prorl_service.sandbox.kinds.bubblewrap import BubblewrapProvider

pytestmark = pytest.mark.processes

AT = "/workspace/project"
ENVIRONMENT = SweEnvironment(repository=AT, test_files=["tests"])

HISTORY = f"""
set -e
git init -q -b main {AT} && cd {AT}
git config user.name t && git config user.email t@localhost
echo '*.log' > .gitignore; echo one > a.py; echo kept > kept.log
git add -A -f; git commit -q -m one
git checkout -q -b later; echo SECRET-FIX > a.py; git commit -q -a -m 'the fix'; git tag v2
git checkout -q main; echo SECRET-STASH > a.py; git stash -q
git remote add origin https://example.invalid/project
git checkout -q --detach; echo untracked > untracked.py; echo built > built.log
"""


@pytest.fixture
async def sandbox() -> AsyncIterator[RemoteSandbox]:
    async with BubblewrapProvider() as provider:
        sandbox = provider.create(image=None, limits=SandboxLimits())
        await sandbox.start()
        await run(sandbox, f"( {HISTORY} )")
        yield sandbox
        await sandbox.stop()


def only(sandbox: RemoteSandbox) -> OpenSandbox:
    """For patches that are not worth a second sandbox."""
    return lambda: nullcontext(sandbox)


async def run(sandbox: RemoteSandbox, command: str) -> str:
    result = await sandbox.call_tool("bash", {"command": command}, timeout_s=30)
    assert not result.is_error, result.output
    return result.output.strip()


async def test_nothing_of_the_history_is_left(sandbox: RemoteSandbox) -> None:
    await prepare(sandbox, ENVIRONMENT)
    look = f"cd {AT}; git rev-list --all --reflog | wc -l; git remote; git tag; git stash list"
    assert await run(sandbox, look) == "1"
    objects = "git cat-file --batch-all-objects --batch | grep -c SECRET || true"
    assert await run(sandbox, f"cd {AT}; {objects}") == "0"
    assert await run(sandbox, f"cd {AT}; git ls-files") == (
        ".gitignore\na.py\nkept.log\nuntracked.py"
    )
    assert await run(sandbox, f"cd {AT}; git status --porcelain; cat a.py") == "one"


async def test_the_base_is_the_same_each_time(sandbox: RemoteSandbox) -> None:
    assert await prepare(sandbox, ENVIRONMENT) == await prepare(sandbox, ENVIRONMENT)


async def test_a_patch_has_all_changes_except_ignored_files(
    sandbox: RemoteSandbox,
) -> None:
    base = await prepare(sandbox, ENVIRONMENT)
    assert await extract_patch(sandbox, ENVIRONMENT, base) == b""
    binary = "printf '\\0\\1' > data.bin; rm untracked.py; echo two >> a.py; echo x > new.log"
    await run(sandbox, f"cd {AT}; {binary}; mkdir 'a b'; echo new > 'a b/c.py'; cd /")
    patch = await extract_patch(sandbox, ENVIRONMENT, base)
    assert patch is not None
    for part in (b"+two", b"GIT binary patch", b"deleted file mode", b"b/a b/c.py"):
        assert part in patch
    assert b"new.log" not in patch


async def test_a_file_git_cannot_add_does_not_cost_the_other_changes(
    sandbox: RemoteSandbox,
) -> None:
    base = await prepare(sandbox, ENVIRONMENT)
    await run(sandbox, f"cd {AT}; git init -q inside; echo two >> a.py; cd /")
    patch = await extract_patch(sandbox, ENVIRONMENT, base)
    assert patch is not None
    assert b"+two" in patch


@pytest.mark.parametrize(("file_mb", "applies"), [(8, False), (32, True)])
async def test_a_patch_that_expands_beyond_the_limit_does_not_apply(
    file_mb: int, applies: bool
) -> None:
    async with BubblewrapProvider() as provider:
        sandbox = provider.create(image=None, limits=SandboxLimits(file_mb=file_mb))
        await sandbox.start()
        try:
            await run(sandbox, f"( {HISTORY} )")
            await prepare(sandbox, ENVIRONMENT)
            patch = adding(bytes(16 << 20))
            assert len(patch) < 100_000
            assert await apply_text(sandbox, ENVIRONMENT, patch) is applies
        finally:
            await sandbox.stop()


def adding(content: bytes) -> bytes:
    """Returns a git patch that adds a binary file."""
    packed = zlib.compress(content)
    parts = [packed[at : at + 52] for at in range(0, len(packed), 52)]
    sizes = [len(part) + (64 if len(part) <= 26 else 70) for part in parts]  # A to Z, a to z
    lines = [
        b"%c%b\n" % (size, base64.b85encode(part, True))
        for size, part in zip(sizes, parts, strict=True)
    ]
    digest = hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest().encode()
    head = b"diff --git a/x b/x\nnew file mode 100644\nindex %b..%b\n" % (b"0" * 40, digest)
    return head + b"GIT binary patch\nliteral %d\n%b\n" % (len(content), b"".join(lines))


async def test_a_patch_that_is_too_large_is_not_extracted(sandbox: RemoteSandbox) -> None:
    base = await prepare(sandbox, ENVIRONMENT)
    await run(sandbox, f"yes word | head -c {MAX_PATCH_BYTES + 1} > {AT}/large.txt")
    assert await extract_patch(sandbox, ENVIRONMENT, base) is None


async def test_a_missing_repository_is_the_tasks_fault(sandbox: RemoteSandbox) -> None:
    elsewhere = SweEnvironment(repository="/workspace/elsewhere", test_files=["tests"])
    with pytest.raises(TaskError, match="cannot be set up"):
        await prepare(sandbox, elsewhere)


BUG = """\
diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -1 +1 @@
-one
+broken
"""


async def test_a_bug_from_a_setup_patch_is_part_of_the_base(sandbox: RemoteSandbox) -> None:
    environment = ENVIRONMENT.model_copy(update={"setup_patch": BUG})
    base = await prepare(sandbox, environment)
    assert await run(sandbox, f"cd {AT}; git show HEAD:a.py; git status --porcelain") == "broken"
    assert await extract_patch(sandbox, environment, base) == b""
    with pytest.raises(TaskError, match="patch does not apply"):
        await prepare(sandbox, environment)


# --- patches made to be slow, and hostile shells -------------------------------------------------


def data(**changed: object) -> SweData:
    fields = {"test_patch": "", "FAIL_TO_PASS": ["tests/a.py::b"], "PASS_TO_PASS": []}
    return SweData.model_validate(
        {"instance_id": "i", "environment": ENVIRONMENT.model_dump(), **fields, **changed}
    )


def searching(lines: int) -> bytes:
    """Returns a patch whose second part git searches for in the file made by the first part, in
    time that grows with the square of `lines`."""
    made = b"diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n"
    made += b"@@ -0,0 +1,%d @@\n" % lines + b"+x\n" * lines
    half = lines // 2
    changed = b"diff --git a/n b/n\n--- a/n\n+++ b/n\n"
    changed += b"@@ -2,%d +2,%d @@\n" % (half, half)
    return made + changed + b" x\n" * (half - 2) + b"-y\n+z\n x\n"


async def test_a_commit_of_the_patched_tree_shows_no_change(sandbox: RemoteSandbox) -> None:
    await prepare(sandbox, ENVIRONMENT)
    await run(sandbox, f"cd {AT}; echo OLD > new.py; git add new.py; echo NEW > new.py")
    assert await commit(sandbox, ENVIRONMENT)
    assert await run(sandbox, f"cd {AT}; git status --porcelain; git rev-list --all | wc -l") == "1"
    objects = "git cat-file --batch-all-objects --batch | grep -c OLD || true"
    assert await run(sandbox, f"cd {AT}; git show HEAD:new.py; {objects}") == "NEW\n0"


async def test_a_patch_that_takes_git_too_long_is_the_policys_failure(
    sandbox: RemoteSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepare(sandbox, ENVIRONMENT)
    monkeypatch.setattr(repository, "GIT_TIMEOUT_S", 1.0)
    assert await apply_text(sandbox, ENVIRONMENT, searching(200_000)) is False


async def test_a_patch_of_too_many_lines_is_not_given_to_git(sandbox: RemoteSandbox) -> None:
    for patch in (searching(200_000), b"diff --git a/n b/n\n" + b"@@ -1 +1 @@\n" * 20_000):
        report = await grade_patch(only(sandbox), data(), patch)
        assert report.outcome is SweOutcome.PATCH_FAILED
        assert "more than" in report.summary
    # git was not called, and the repository was not even set up
    assert await run(sandbox, f"cd {AT}; git rev-list --all | wc -l") != "1"


async def test_binary_files_that_expand_to_gigabytes_are_not_given_to_git(
    sandbox: RemoteSandbox,
) -> None:
    patch = adding(b"x").replace(b"literal 1\n", b"literal 8000000000\n")
    report = await grade_patch(only(sandbox), data(), patch)
    assert report.outcome is SweOutcome.PATCH_FAILED
    assert "8000000000 bytes of binary files" in report.summary


@pytest.mark.parametrize("content", [b"\xff\n", None])
async def test_a_patch_that_ruins_a_test_it_may_change_is_the_policys_failure(
    sandbox: RemoteSandbox, content: bytes | None
) -> None:
    base = await prepare(sandbox, ENVIRONMENT)
    await (
        run(sandbox, f"rm {AT}/a.py") if content is None else sandbox.upload(f"{AT}/a.py", content)
    )
    patch = await extract_patch(sandbox, ENVIRONMENT, base)
    assert patch
    await run(sandbox, f"cd {AT}; git reset -q --hard")
    report = await grade_patch(
        only(sandbox), data(FAIL_TO_PASS=["a.py::test"], allowed_files=["a.py"]), patch
    )
    assert report.outcome is SweOutcome.PATCH_FAILED
    assert "a.py cannot be read" in report.summary


FORGED = "diff --git a/forged b/forged\nnew file mode 100644\n"
HOSTILE = f"""
forge() {{
  for path in $(printf '%s\\n' "$@" | grep -o '/tmp/[0-9a-f]*[.]patch' | sort -u); do
    printf '{FORGED}' > $path; echo 40; done; }}
env() {{ forge "$@"; }}
bash() {{ forge "$@"; }}
git() {{ forge "$@"; }}
cd() {{ :; }}
set() {{ :; }}
alias env=forge bash=forge git=forge
export BASH_ENV=/tmp/rc GIT_DIR=/tmp/elsewhere GIT_INDEX_FILE=/tmp/index
printf '{FORGED.encode("unicode_escape").decode()}' > /tmp/forged; echo 'exit 3' > /tmp/rc
"""


async def test_a_hostile_shell_cannot_change_the_extracted_patch(
    sandbox: RemoteSandbox,
) -> None:
    base = await prepare(sandbox, ENVIRONMENT)
    await run(sandbox, f"echo two >> {AT}/a.py")
    await sandbox.call_tool("bash", {"command": HOSTILE}, timeout_s=30)
    patch = await extract_patch(sandbox, ENVIRONMENT, base)
    assert patch is not None
    assert b"+two" in patch
    assert b"forged" not in patch


async def test_a_process_that_rewrites_the_patch_cannot_make_it_larger(
    sandbox: RemoteSandbox,
) -> None:
    base = await prepare(sandbox, ENVIRONMENT)
    size = MAX_PATCH_BYTES + 1
    loop = f"while :; do for f in /tmp/*.patch; do truncate -s {size} $f; done; done"
    await run(sandbox, f"echo two >> {AT}/a.py; ( {loop} ) > /dev/null 2>&1 &")
    patch = await extract_patch(sandbox, ENVIRONMENT, base)
    assert patch is None or len(patch) <= MAX_PATCH_BYTES


async def test_a_repository_that_keeps_git_busy_gives_an_empty_patch(
    sandbox: RemoteSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = await prepare(sandbox, ENVIRONMENT)
    slow = "git config filter.s.clean 'sleep 600'; echo '* filter=s' > .gitattributes"
    await run(sandbox, f"cd {AT}; {slow}; echo two >> a.py; cd /")
    monkeypatch.setattr(repository, "GIT_TIMEOUT_S", 2.0)
    assert await extract_patch(sandbox, ENVIRONMENT, base) == b""
    assert await run(sandbox, "pgrep -c sleep || true") == "0"


OF_TESTS = """\
diff --git a/tests/a.py b/tests/a.py
new file mode 100644
--- /dev/null
+++ b/tests/a.py
@@ -0,0 +1 @@
+def b(): pass
"""


async def test_a_test_patch_that_does_not_fit_the_base_is_the_data_sets_fault(
    sandbox: RemoteSandbox,
) -> None:
    notes = OF_TESTS.replace("tests/a.py", "notes.txt").encode()
    wrong = data(test_patch=OF_TESTS.replace("@@ -0,0", "@@ -1").replace("/dev/null", "a/tests/a"))
    with pytest.raises(EvaluatorError, match="test patch does not apply to the base"):
        await grade_patch(only(sandbox), wrong, notes)
