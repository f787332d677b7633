"""Recorder that runs pytest inside a sandbox and writes each test's result. Sent there as source.

Opens its file and imports pytest before anything of the repository can be imported, so that a log
or a module of the same name cannot forge results. Records what a test itself raised in addition to
what pytest reports of it. Runs on Python 3.6 and newer; standard library and pytest only.
"""

import json
import os
import sys
from typing import Any


def main() -> int:
    with open(sys.argv[1]) as file:
        config = json.load(file)
    os.remove(sys.argv[1])
    os.remove(__file__)
    results = os.open(config["results"], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DEBUG"):
        os.environ.pop(name, None)
    if not config["installed_plugins"]:
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    here = os.path.realpath(os.path.dirname(__file__))
    sys.path[:] = [path for path in sys.path if os.path.realpath(path) != here]

    import pytest

    recorder = _recorder(pytest, results, config["nonce"])
    paths = config["import_paths"]
    sys.path[:0] = paths
    inherited = [path for path in [os.environ.get("PYTHONPATH")] if path]
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *inherited])
    sys.argv = ["pytest"]
    return int(pytest.main(config["arguments"], plugins=[recorder]))


def _recorder(pytest: Any, results: int, nonce: str) -> Any:
    write, dumps = os.write, json.dumps
    raised = set()

    def record(**fields: Any) -> None:
        write(results, (dumps(dict(fields, nonce=nonce)) + "\n").encode())

    def watch(item: Any, when: str) -> Any:
        outcome = yield
        # unittest's cases keep an exception instead of raising it
        if outcome.excinfo is not None or getattr(item, "_excinfo", None):
            raised.add((item.nodeid, when))

    class Recorder:
        def pytest_collection_finish(self, session: Any) -> None:
            record(kind="collected", ids=[item.nodeid for item in session.items])

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)  # type: ignore[untyped-decorator]
        def pytest_runtest_setup(self, item: Any) -> Any:
            yield from watch(item, "setup")

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)  # type: ignore[untyped-decorator]
        def pytest_runtest_call(self, item: Any) -> Any:
            yield from watch(item, "call")

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)  # type: ignore[untyped-decorator]
        def pytest_runtest_teardown(self, item: Any) -> Any:
            yield from watch(item, "teardown")

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)  # type: ignore[untyped-decorator]
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
            outcome = yield
            report = outcome.get_result()
            record(
                kind="phase",
                id=item.nodeid,
                when=call.when,
                outcome=report.outcome,
                raised=call.excinfo is not None or (item.nodeid, call.when) in raised,
                xfail=hasattr(report, "wasxfail"),
            )

        @pytest.hookimpl(trylast=True)  # type: ignore[untyped-decorator]
        def pytest_sessionfinish(self, session: Any, exitstatus: int) -> None:
            record(kind="end", exit_code=int(exitstatus))

    return Recorder()


if __name__ == "__main__":
    sys.exit(main())
