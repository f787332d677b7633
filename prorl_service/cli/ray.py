"""`prorl ray`: runs on a Ray cluster. `prorl_service.ray` does the work; Ray is imported on use."""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import yaml
from cyclopts import App, Parameter
from cyclopts.config import Dict
from rich.table import Table
from rich.text import Text

from prorl_service.cli.program import DEFAULTS, Json, options_in, say
from prorl_service.cli.screen import Screen
from prorl_service.cli.serve import front, serve
from prorl_service.cli.status import BAD, GOOD
from prorl_service.cli.wording import duration, plural
from prorl_service.errors import ProRLError
from prorl_service.net.credentials import take_token
from prorl_service.ray.options import NodeOptions, UpOptions
from prorl_service.ray.plan import LOCAL, NodeStatus, Report, RunPlan, RunStatus, State
from prorl_service.server.settings import (
    EngineOptions,
    HttpOptions,
    RunOptions,
    ServiceSettings,
    panel,
)
from prorl_service.utils.runs import new_run
from prorl_service.utils.visible import visible_line

ray = App(name="ray", help="Run services on all nodes of a Ray cluster, as one.")

Address = Annotated[
    str,
    Parameter(
        help="Address of the cluster; RAY_ADDRESS, if set, comes first. 'auto' looks for one."
    ),
]
STYLES = {
    State.SERVING: GOOD,
    State.WAITING: "yellow",
    State.STARTING: "yellow",
    State.STOPPING: "yellow",
    State.RESTARTING: BAD,
    State.UNREACHABLE: BAD,
}
PROBLEM_CHARS = 200
LOOPBACK = "127.0.0.1"
Run = Annotated[str | None, Parameter(help="Name of the run (default: the only one).")]


@ray.command
def up(
    *serve_options: Annotated[str, Parameter(allow_leading_hyphen=True)],
    address: Address = "auto",
    options: Annotated[UpOptions, Parameter(name="*")] = UpOptions(),
    engines: Annotated[EngineOptions, panel("Engines")] = EngineOptions(),
    nodes: Annotated[NodeOptions, panel("Nodes")] = NodeOptions(),
) -> None:
    """Start a service on each node, and a front that makes them one; print the front's URL.

    The run stays up when this command has ended. If it is up, the command only waits and prints.
    With `--address local` Ray runs on this machine, and all ends with the command.

    Parameters
    ----------
    serve_options
        After `--`: options of `prorl serve` for each service, such as `-- --run-workers 64`.
    """
    plan = _plan(serve_options, options, engines, nodes)
    if address == LOCAL and plan.host is None:
        plan = replace(plan, host=LOOPBACK)
    wait_for = options.wait_for
    if wait_for is None:
        wait_for = 1 if nodes.max_nodes is None else nodes.min_nodes
    runs = _runs()
    with runs.connected(address):
        runs.start(plan)
        now = runs.wait_until_up(plan.run, services=wait_for, timeout_s=options.wait_s, report=say)
        say(f"run {plan.run} is up; its token is the one that `prorl token` prints, or your own")
        print(now.front.url, flush=True)
        if address == LOCAL:
            _wait_for_signal()
            say("draining")
            runs.stop(plan.run)


@ray.command
def status(*, address: Address = "auto", run: Run = None, as_json: Json = False) -> None:
    """Show the runs of a cluster: their fronts, nodes and services."""
    runs = _runs()
    with runs.connected(address):
        wanted = runs.names() if run is None else [runs.the_run(run)]
        found = [runs.status(one) for one in wanted]
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return
    if not found:
        print("no runs on this cluster; `prorl ray up` starts one")
    for one in found:
        _show(one)


@ray.command
def down(*, address: Address = "auto", run: Run = None) -> None:
    """End a run: its front and its services are drained. Journals keep what has not ended."""
    runs = _runs()
    with runs.connected(address):
        name = runs.the_run(run)
        runs.stop(name)
    say(f"run {name} has ended; `prorl ray up --run {name}` continues it")


def _plan(
    serve_options: tuple[str, ...], options: UpOptions, engines: EngineOptions, nodes: NodeOptions
) -> RunPlan:
    """Raises `ProRLError`, and what parsers raise, for options that cannot work."""
    for_services = _options(options.serve_config, "--serve-config")
    for_front = _options(options.front_config, "--front-config")
    settings = _checked_serve(serve_options, for_services)
    _check_front(for_front)
    nodes.check()
    return RunPlan(
        run=_named(options.run),
        token=take_token(options.token_file, "") or "",
        nodes=nodes,
        host=options.host,
        port=options.port,
        drain_s=options.drain_s,
        agents=options.agent,
        slots=settings.pipeline.init_workers + settings.pipeline.run_workers,
        serve=serve_options,
        serve_config=_yaml(for_services),
        front_config=_yaml(for_front),
        environment={name: _variable(name) for name in options.env},
        **_engines(engines),
    )


def _runs() -> ModuleType:
    """Raises `ProRLError` without Ray."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        from prorl_service.ray import runs
    except ImportError as error:
        raise ProRLError(
            f"`prorl ray` needs what is not installed: {error}",
            hint="pip install 'prorl-service[ray]'",
        ) from error
    return runs


def _named(run: str | None) -> str:
    """Raises `ProRLError` for what names no run."""
    RunOptions(run=run).named()
    return run or new_run()


def _engines(engines: EngineOptions) -> dict[str, Any]:
    specs = engines.specs()
    key = specs[0].api_key if specs else None
    urls = tuple(one.url for one in specs)
    return {"backends": urls, "tokenizer": engines.tokenizer, "backend_key": key}


def _variable(name: str) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise ProRLError(f"--env {name}: this variable is not set") from None


# --- options of others --------------------------------------------------------------------------


def _options(file: Path | None, flag: str) -> Mapping[str, Any]:
    return {} if file is None else options_in(file, flag, "run-workers: 64")


def _yaml(options: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(options)) if options else ""


def _checked_serve(tokens: Sequence[str], config: Mapping[str, Any]) -> ServiceSettings:
    """Returns the settings of a service, so that a wrong option is reported before anything starts.
    Raises what the parser does, and `ProRLError` for options that `prorl ray up` sets."""
    given = _parsed(serve, tokens, config)
    settings: ServiceSettings = given.get("settings", ServiceSettings())
    _refuse(given.get("http", HttpOptions()), HttpOptions(), "host", "port", "token_file")
    _refuse(given.get("http", HttpOptions()), HttpOptions(), "no_token", "announce", "drain_s")
    _refuse(settings.run, RunOptions(), "run", "journal", "resume")
    _refuse(settings.engines, EngineOptions(), "backend", "backend_key_file", "tokenizer")
    _refuse(settings, ServiceSettings(), "agent")
    return settings


def _check_front(config: Mapping[str, Any]) -> None:
    """Raises as `_checked_serve`."""
    given = _parsed(front, ["--services", "."], config)
    settings, http = given["settings"], given.get("http", HttpOptions())
    _refuse(http, HttpOptions(), "host", "port", "token_file", "no_token", "drain_s")
    _refuse(settings.run, RunOptions(), "run", "journal", "resume")
    _refuse(settings.engines, EngineOptions(), "backend", "backend_key_file", "tokenizer")


def _parsed(command: Any, tokens: Sequence[str], config: Mapping[str, Any]) -> Mapping[str, Any]:
    source = Dict(dict(config), source="its file of options", use_commands_as_keys=False)
    parser = App(default_command=command, default_parameter=DEFAULTS, config=source)
    _, bound, _ = parser.parse_args(tokens, exit_on_error=False, print_error=False)
    return bound.arguments


def _refuse(given: object, default: object, *names: str) -> None:
    """Raises `ProRLError` for options that are not at their default."""
    for name in names:
        if getattr(given, name) != getattr(default, name):
            flag = f"--{name.replace('_', '-')}"
            raise ProRLError(
                f"{flag} of services and front is set by `prorl ray up`",
                hint=f"give {flag} to `prorl ray up` itself, if it has it: before the `--`",
            )


# --- the terminal -------------------------------------------------------------------------------


def _show(run: RunStatus) -> None:
    """Prints the run: a heading, its front, and a row for each service."""
    screen = Screen(sys.stdout)
    stopping = ", stopping" if run.is_stopping else ""
    screen.line(f"run {visible_line(run.run)}: {_heading(run)}{stopping}", "bold")
    screen.table(_table(run))


def _heading(run: RunStatus) -> str:
    serving = sum(one.report.state is State.SERVING for one in run.nodes)
    wanted = "" if run.wanted is None else f", {run.wanted} wanted"
    others = f", {plural(run.others, 'node')} without one" if run.others else ""
    return (
        f"{serving} of {plural(len(run.nodes), 'service')} answering{wanted}{others}; "
        f"{run.running} rollouts running, {run.queued} queued"
    )


def _table(run: RunStatus) -> Table:
    names = ("", "state", "for", "rollouts", "restarts", "address", "node", "problem")
    found = Table(*names, box=None)
    found.add_row("front", *_process(run.front, "", ""))
    for one in run.nodes:
        found.add_row(visible_line(one.name), *_process(one.report, _busy(one), one.node_id[-8:]))
    return found


def _process(report: Report, busy: str, node: str) -> list[Text | str]:
    return [
        Text(report.state.value, STYLES.get(report.state, "")),
        duration(time.time() - report.since),
        busy,
        str(report.restarts) if report.restarts else "",
        visible_line(report.url),
        node,
        visible_line(report.problem, limit=PROBLEM_CHARS),
    ]


def _busy(one: NodeStatus) -> str:
    if not one.slots:
        return ""
    closed = "" if one.takes_rollouts else ", closed"
    return f"{one.load} of {one.slots}{closed}"


def _wait_for_signal() -> None:
    numbers = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    signal.sigwait(numbers)
