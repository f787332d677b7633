"""The repository of an SWE task in a sandbox: set up, read out as a patch, patched.

Two sandboxes see the same state: the agent's, and the fresh one in which its patch is graded. Both
hold one commit and nothing of the history, which could tell the answer. What comes out of the
agent's sandbox is the text of a patch and trusted in nothing.
"""

import asyncio
import errno
from collections.abc import Collection, Sequence
from pathlib import Path
from secrets import token_hex

from prorl_service.agents.swe import program
from prorl_service.agents.swe.data import SweData, SweEnvironment
from prorl_service.errors import EvaluatorError, TaskError
from prorl_service.rewards.swe.patch import MAX_PATCH_BYTES, Change, changes, is_protected
from prorl_service.sandbox.archives import load_archive
from prorl_service.sandbox.base import Sandbox, ToolResult

GIT_TIMEOUT_S = 120.0

PROGRAM = Path(program.__file__).read_text()
ENVIRONMENT = {"HOME": "/tmp", "PATH": "/usr/local/bin:/usr/bin:/bin"}

GIT = (
    "env GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 git --literal-pathspecs"
    " -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false"
    " -c core.autocrlf=false -c core.quotePath=false -c commit.gpgSign=false"
    " -c user.name=task -c user.email=task@localhost"
)

# Remotes, tags, reflogs and objects that nothing refers to: all of the history goes with the old
# .git. What was not tracked is committed too, so that it is in no patch.
ONE_COMMIT = f"""
tracked=$(mktemp)
{GIT} ls-files -z > "$tracked"
rm -rf .git
{GIT} init -q
{GIT} update-index --add --remove -z --stdin < "$tracked"
{GIT} add -A
{GIT} commit -q --allow-empty -m base
rm -r "$tracked" .git/logs
{GIT} rev-parse 'HEAD^{{tree}}'
"""


async def prepare(sandbox: Sandbox, environment: SweEnvironment) -> str:
    """The repository at its base, in one commit; its tree's hash. Raises `TaskError`."""
    if environment.archive is not None:
        tar = await asyncio.to_thread(load_archive, environment.archive)
        try:
            await sandbox.restore(environment.unpack_at, tar)
        except OSError as error:
            raise TaskError(f"the archive cannot be unpacked: {error}") from error
    script = ONE_COMMIT
    if environment.setup_patch:
        path = f"/tmp/{token_hex(8)}.patch"
        await sandbox.upload(path, environment.setup_patch.encode())
        script = f"{GIT} apply --whitespace=nowarn {path}\nrm {path}\n{ONE_COMMIT}"
    done = await in_repository(sandbox, environment, script)
    if done.is_error:
        raise TaskError(f"the repository cannot be set up: {done.output[-2000:]}")
    return done.output.split()[-1]


async def extract_patch(sandbox: Sandbox, environment: SweEnvironment, base: str) -> bytes | None:
    """All that differs from `base`, a tree; ignored files excepted. None if it is too large.

    b"" where nothing can be got: whatever the agent has done to its repository is its own loss.
    What still runs in the sandbox may change the patch meanwhile: it is the agent's in any case.
    """
    patch = f"/tmp/{token_hex(8)}.patch"
    # An index of its own: locks of the agent's do not matter.
    script = f"""
set -e
cd {environment.repository}
export GIT_INDEX_FILE={patch}.index
{GIT} read-tree {base}
{GIT} add -A --ignore-errors || :  # of a repository inside that has no commit, say
{GIT} diff --cached --binary --full-index --no-renames --no-ext-diff --no-textconv --no-color \
  {base} > {patch}
"""
    call = {"argv": ["bash", "-c", script], "environment": ENVIRONMENT}
    await sandbox.add_tool("program", PROGRAM)
    done = await sandbox.call_tool("program", call, timeout_s=GIT_TIMEOUT_S)
    if done.is_error:
        return b""
    try:
        return await sandbox.download(patch, max_bytes=MAX_PATCH_BYTES)
    except OSError as error:
        return None if error.errno == errno.EFBIG else b""


async def apply_patch(
    sandbox: Sandbox, data: SweData, patch: bytes, tests: Collection[str]
) -> tuple[list[Change], list[Change]] | None:
    """What was applied, and what was not because it is protected. None if it does not apply.

    The whole patch is applied and what is protected is put back, as git and not the patch tells.
    Nothing that a patch can do is an error of the evaluation: it would take the place of a 0.
    """
    if not await apply_text(sandbox, data.environment, patch):
        return None
    dropped = [
        change
        for change in await _changes(sandbox, data.environment)
        if is_protected(change, allowed=data.allowed_files, tests=tests)
    ]
    await _put_back(sandbox, data.environment, dropped)
    kept = await _changes(sandbox, data.environment)
    if any(is_protected(change, allowed=data.allowed_files, tests=tests) for change in kept):
        return None
    return kept, dropped


async def apply_text(sandbox: Sandbox, environment: SweEnvironment, patch: bytes) -> bool:
    """Whether the patch applies, in time: what git searches for grows with the square of it."""
    path = f"/tmp/{token_hex(8)}.patch"
    await sandbox.upload(path, patch)
    script = f"{GIT} apply --index --whitespace=nowarn {path}\nrm {path}"
    return not (await in_repository(sandbox, environment, script)).is_error


async def fits_the_base(sandbox: Sandbox, environment: SweEnvironment, patch: bytes) -> bool:
    """Whether a patch applies to what was committed, whatever is in the repository now."""
    path = f"/tmp/{token_hex(8)}.patch"
    await sandbox.upload(path, patch)
    script = f"""
export GIT_INDEX_FILE={path}.index
{GIT} read-tree HEAD
{GIT} apply --cached --check --whitespace=nowarn {path}
"""
    return not (await in_repository(sandbox, environment, script)).is_error


async def in_repository(sandbox: Sandbox, environment: SweEnvironment, script: str) -> ToolResult:
    """Result of a subshell that stops at the first error. Raises `SandboxError`."""
    command = f"( set -e -o pipefail; cd {environment.repository}\n{script}\n)"
    return await sandbox.call_tool("bash", {"command": command}, timeout_s=GIT_TIMEOUT_S)


def activated(environment: SweEnvironment, command: str) -> str:
    """A command of bash that runs this one in the repository, with the right Python."""
    return f"(\ncd {environment.repository}\n{environment.activate or ':'}\n{command}\n)"


async def _changes(sandbox: Sandbox, environment: SweEnvironment) -> list[Change]:
    listing = f"/tmp/{token_hex(8)}.raw"
    script = f"{GIT} diff --cached --raw -z --no-renames --no-ext-diff HEAD > {listing}"
    done = await in_repository(sandbox, environment, script)
    if done.is_error:
        raise EvaluatorError(f"git cannot tell what was changed: {done.output[-2000:]}")
    return changes(await sandbox.download(listing))


async def _put_back(
    sandbox: Sandbox, environment: SweEnvironment, dropped: Sequence[Change]
) -> None:
    # New ones first: a new file may stand where a directory was.
    for command, are_new in (("rm -q -f", True), ("checkout -q HEAD", False)):
        paths = [change.path for change in dropped if change.is_new is are_new]
        if paths:
            listing = f"/tmp/{token_hex(8)}.paths"
            await sandbox.upload(listing, "\0".join(paths).encode(errors="surrogateescape"))
            script = f"xargs -0 {GIT} {command} -- < {listing}"
            await in_repository(sandbox, environment, script)
