"""Runs of the tests by pytest, with our recorder."""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex

from prorl_service.agents.swe.data import SweData
from prorl_service.agents.swe.repository import activated
from prorl_service.errors import EvaluatorError
from prorl_service.rewards.swe import guest_pytest_plugin
from prorl_service.rewards.swe.canary import Candidates, Version
from prorl_service.rewards.swe.grade import Results, TestRun, read_run
from prorl_service.sandbox.base import Sandbox

RECORDER = Path(guest_pytest_plugin.__file__).read_bytes()


async def tests_to_change(sandbox: Sandbox, data: SweData) -> Candidates:
    """Returns the files that have tests to be fixed, and their tests. Raises `EvaluatorError`."""
    sources = {}
    for file in sorted({id_.partition("::")[0] for id_ in data.FAIL_TO_PASS}):
        path = f"{data.environment.repository}/{file}"
        try:
            sources[file] = (await sandbox.download(path)).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise EvaluatorError(f"{file} cannot be read for its tests: {error}") from error
    failing = {_function(id_) for id_ in data.expected_xfails}
    fixed = sorted({_function(id_) for id_ in data.FAIL_TO_PASS})
    kept = {_function(id_) for id_ in data.PASS_TO_PASS} - failing
    return Candidates(
        sources, fixed, sorted(id_ for id_ in kept if id_.partition("::")[0] in sources)
    )


async def run_tests(sandbox: Sandbox, data: SweData, version: Version, timeout_s: float) -> Results:
    """Raises `SandboxError`."""
    environment = data.environment
    directory, nonce = f"/tmp/{token_hex(8)}", token_hex(16)
    config = {
        "results": f"{directory}/{token_hex(8)}",
        "nonce": nonce,
        "import_paths": [f"{environment.repository}/{path}" for path in environment.import_paths],
        "arguments": _arguments(data),
        "installed_plugins": environment.installed_plugins,
    }
    await sandbox.upload(f"{directory}/run.py", RECORDER)
    await sandbox.upload(f"{directory}/config", json.dumps(config).encode())
    run = f"{environment.python} {directory}/run.py {directory}/config < /dev/null"
    started = time.monotonic()
    command = {"command": activated(environment, run)}
    done = await sandbox.call_tool("bash", command, timeout_s=timeout_s)
    run_of_tests = TestRun(
        nonce=nonce,
        records=await _records(sandbox, str(config["results"])),
        exit_code=done.data["exit_code"],
        timed_out=bool(done.data["timed_out"]),
    )
    results = await asyncio.to_thread(read_run, run_of_tests, data.expected(), version.changed)
    results.log, results.test_s = done.output, time.monotonic() - started
    return results


def _function(id_: str) -> str:
    return id_.partition("[")[0]


def _arguments(data: SweData) -> Sequence[str]:
    environment = data.environment
    plugins = [item for name in environment.pytest_plugins for item in ("-p", name)]
    ours = [f"--rootdir={environment.repository}", "-p", "no:cacheprovider", "--maxfail=0"]
    shown = ["-rA", "--tb=short"]
    return [*ours, *shown, *plugins, *environment.pytest_arguments, *environment.test_files]


async def _records(sandbox: Sandbox, path: str) -> bytes:
    try:
        return await sandbox.download(path)
    except OSError:  # the run did not start, or removed it
        return b""
