"""The repository of an SWE task in a sandbox: set up, read out as a patch, patched.

Two sandboxes see the same state: the agent's, and the fresh one in which its patch is graded. Both
hold one commit without history, which could reveal the answer. Only the text of a patch leaves the
agent's sandbox, and it is not trusted.
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

# All history goes with the old .git: remotes, tags, reflogs and unreachable objects. Untracked
# files are committed too, so that no patch contains them.
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
    """Commits the repository at its base; returns the tree's hash. Raises `TaskError`."""
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


async def commit(sandbox: Sandbox, environment: SweEnvironment) -> bool:
    """Replaces the only commit by one of the present tree, and leaves no object of the old one.
    Returns whether that worked."""
    return not (await in_repository(sandbox, environment, ONE_COMMIT)).is_error


async def extract_patch(sandbox: Sandbox, environment: SweEnvironment, base: str) -> bytes | None:
    """Returns the difference to `base`, a tree, without ignored files. None if it is too large.

    b"" if git fails: whatever the agent has done to its repository is its own loss. Processes left
    in the sandbox may change the patch meanwhile: it is the agent's in any case.
    """
    patch = f"/tmp/{token_hex(8)}.patch"
    # A separate index, so that the agent's locks do not matter.
    script = f"""
set -e
cd {environment.repository}
export GIT_INDEX_FILE={patch}.index
{GIT} read-tree {base}
{GIT} add -A --ignore-errors || :  # fails on a nested repository without commits, for example
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
    """Returns the changes that were applied and the protected ones that were not. None if the patch
    does not apply.

    The whole patch is applied, then protected files are put back, by git's list of changes and not
    the patch's. No patch can cause an error of the evaluation, which would replace a reward of 0.
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
    """Applies a patch; returns whether that worked in time, as git may need quadratic time."""
    path = f"/tmp/{token_hex(8)}.patch"
    await sandbox.upload(path, patch)
    script = f"{GIT} apply --index --whitespace=nowarn {path}\nrm {path}"
    return not (await in_repository(sandbox, environment, script)).is_error


async def fits_the_base(sandbox: Sandbox, environment: SweEnvironment, patch: bytes) -> bool:
    """Returns whether a patch applies to the commit, whatever the working tree contains now."""
    path = f"/tmp/{token_hex(8)}.patch"
    await sandbox.upload(path, patch)
    script = f"""
export GIT_INDEX_FILE={path}.index
{GIT} read-tree HEAD
{GIT} apply --cached --check --whitespace=nowarn {path}
"""
    return not (await in_repository(sandbox, environment, script)).is_error


async def in_repository(sandbox: Sandbox, environment: SweEnvironment, script: str) -> ToolResult:
    """Runs `script` in a subshell that stops at the first error. Raises `SandboxError`."""
    command = f"( set -e -o pipefail; cd {environment.repository}\n{script}\n)"
    return await sandbox.call_tool("bash", {"command": command}, timeout_s=GIT_TIMEOUT_S)


def activated(environment: SweEnvironment, command: str) -> str:
    """Returns a bash command that runs `command` in the repository, with the right Python."""
    return f"(\ncd {environment.repository}\n{environment.activate or ':'}\n{command}\n)"


async def _changes(sandbox: Sandbox, environment: SweEnvironment) -> list[Change]:
    listing = f"/tmp/{token_hex(8)}.raw"
    script = f"{GIT} diff --cached --raw -z --no-renames --no-ext-diff HEAD > {listing}"
    done = await in_repository(sandbox, environment, script)
    if done.is_error:
        raise EvaluatorError(f"git cannot list the changes: {done.output[-2000:]}")
    return changes(await sandbox.download(listing))


async def _put_back(
    sandbox: Sandbox, environment: SweEnvironment, dropped: Sequence[Change]
) -> None:
    # New files first: one may stand where a directory was.
    for command, are_new in (("rm -q -f", True), ("checkout -q HEAD", False)):
        paths = [change.path for change in dropped if change.is_new is are_new]
        if paths:
            listing = f"/tmp/{token_hex(8)}.paths"
            await sandbox.upload(listing, "\0".join(paths).encode(errors="surrogateescape"))
            script = f"xargs -0 {GIT} {command} -- < {listing}"
            await in_repository(sandbox, environment, script)
