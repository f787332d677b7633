"""Grading by a task's own test command, which runs in the sandbox and leaves a log.

The output goes to a file that only the tests write to, and the exit code comes over the tool's
channel, so there are no markers to forge. The log is read by a process that is killed when it takes
too long.
"""

import asyncio
import json
import shlex
import sys
import time
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from prorl_service.agents.swe.data import SweData
from prorl_service.agents.swe.repository import activated, in_repository
from prorl_service.errors import EvaluatorError
from prorl_service.rewards.swe import guest_unittest_plugin, log_reader
from prorl_service.rewards.swe.canary import Candidates, Version, likely_tests, tests_meant
from prorl_service.rewards.swe.grade import Results
from prorl_service.rewards.swe.log import LogRun, read_log_run
from prorl_service.rewards.swe.patch import patched_files
from prorl_service.sandbox.base import Sandbox

MAX_LOG_BYTES = 8 << 20
SHOWN_BYTES = 32 << 10
"""Size of the log's tail in the report."""
READ_TIMEOUT_S = 30.0

WATCH = Path(guest_unittest_plugin.__file__).read_bytes()


class UnreadableLog(Exception):
    """The log cannot be read; the message says why. Counts against the patch under test."""


async def tests_to_change(sandbox: Sandbox, data: SweData) -> Candidates:
    """Returns the test patch's files and tests. Raises `EvaluatorError` if there are none."""
    sources = {}
    for file in patched_files(data.test_patch):
        if file.endswith(".py"):
            with suppress(OSError, UnicodeDecodeError):  # the patch has removed it
                path = f"{data.environment.repository}/{file}"
                sources[file] = (await sandbox.download(path)).decode()
    fixed = likely_tests(sources, data.FAIL_TO_PASS)
    if not fixed:
        raise EvaluatorError("the test patch has no Python test to make a canary of")
    kept = [id_ for id_ in data.PASS_TO_PASS if id_ not in data.expected_xfails]
    return Candidates(sources, fixed, tests_meant(sources, kept))


async def run_tests(sandbox: Sandbox, data: SweData, version: Version, timeout_s: float) -> Results:
    """Runs the test command and reads its log. Raises `SandboxError`."""
    environment = data.environment
    directory = f"/tmp/{token_hex(8)}"
    await sandbox.upload(f"{directory}/sitecustomize.py", WATCH)
    arguments = {"command": activated(environment, _command(environment.test_command, directory))}
    started = time.monotonic()
    done = await sandbox.call_tool("bash", arguments, timeout_s=timeout_s)
    took_s = time.monotonic() - started
    log, watched = b"", b""
    statuses: dict[str, str] = {}
    problems = []
    try:
        log = await _fetched(sandbox, data, f"{directory}/log")
        statuses = await _read(log, environment.log_parser)
        watched = await _fetched(sandbox, data, f"{directory}/watched")
    except UnreadableLog as error:
        problems.append(str(error))
    exit_code, timed_out = done.data["exit_code"], bool(done.data["timed_out"])
    run = LogRun(statuses, watched, exit_code, timed_out, problems)
    results = await asyncio.to_thread(read_log_run, run, data.expected(), version.changed)
    shown = f"{log[-SHOWN_BYTES:].decode(errors='replace')}\n{done.output}"
    results.log, results.test_s = shown, took_s
    return results


def _command(command: str, directory: str) -> str:
    watch = f"{guest_unittest_plugin.RESULTS}={directory}/watched"
    path = f"PYTHONPATH={directory}${{PYTHONPATH:+:$PYTHONPATH}}"
    quoted = shlex.quote(command)  # so that an incomplete command cannot swallow the rest
    return f"( export {watch} {path}; eval {quoted} ) < /dev/null >> {directory}/log 2>&1"


async def _fetched(sandbox: Sandbox, data: SweData, path: str) -> bytes:
    size = (await in_repository(sandbox, data.environment, f"stat -c %s {path}")).output.strip()
    if size.isdecimal() and int(size) > MAX_LOG_BYTES:
        raise UnreadableLog(f"the log has {size} bytes, more than {MAX_LOG_BYTES}")
    try:
        return await sandbox.download(path)
    except OSError:  # the run did not start, or removed it
        return b""


async def _read(log: bytes, parser: str) -> dict[str, str]:
    program = (sys.executable, "-P", log_reader.__file__, parser)
    pipe = asyncio.subprocess.PIPE
    reader = await asyncio.create_subprocess_exec(*program, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        answer, errors = await asyncio.wait_for(reader.communicate(log), READ_TIMEOUT_S)
    except TimeoutError:
        raise UnreadableLog(f"the log could not be read in {READ_TIMEOUT_S:g} s") from None
    finally:
        if reader.returncode is None:
            reader.kill()
            await reader.wait()
    if reader.returncode != 0:
        raise UnreadableLog(f"the log could not be read: {errors.decode(errors='replace')[-500:]}")
    statuses: dict[str, str] = json.loads(answer)
    return statuses
