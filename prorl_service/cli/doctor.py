"""`prorl doctor`: which sandboxes this host supports, what limits them, and how to get the rest.

It also says which trainers, engines and other neighbours are installed beside it, and which of them
are outside the range that was tested.

Each check runs on its own thread within a budget: a hanging check is reported, not waited for. The
providers say which kinds work, so that the answer is the one that the service would get.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from rich.table import Table
from rich.text import Text

from prorl_service.cli.program import Json
from prorl_service.cli.screen import Screen
from prorl_service.errors import SandboxError
from prorl_service.neighbours import Neighbour, neighbours
from prorl_service.sandbox import SandboxKind, host_checks, provider
from prorl_service.sandbox.host_checks import Finding, Status
from prorl_service.sandbox.kinds import KINDS

BUDGET_S = 45.0
"""Seconds for all checks, which run in parallel; longer than the trial of any provider."""

NOT_INSTALLED = Finding(Status.MISSING, "not installed")
"""Finding on a neighbour that is not here, which is not shown."""

COLOURS = {Status.OK: "green", Status.LIMITED: "yellow", Status.MISSING: "red"}
ISOLATING = [name for name, kind in KINDS.items() if kind.isolates]


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    purpose: str
    """Purpose for which the feature is needed."""
    run: Callable[[], Finding]


HOST = [
    Check("kernel", "all sandboxes", host_checks.kernel),
    Check("user namespaces", "all sandboxes", host_checks.user_namespaces),
    Check("overlays", "images that sandboxes may write to", host_checks.overlays),
    Check("image files", "images as one file (SIF)", host_checks.image_files),
    Check("Dockerfiles", "building images of them", host_checks.dockerfiles),
    Check("/dev/fuse", "mounting image files", host_checks.fuse),
    Check("subordinate ids", "building images with several users", host_checks.subordinate_ids),
    Check("system-call filter", "refusing rare kernel interfaces", host_checks.system_call_filter),
    Check("control groups", "limiting the whole service", host_checks.control_groups),
    Check("disk", "the cache of images and runtimes", host_checks.space),
    Check("memory", "running sandboxes", host_checks.memory),
    Check("Podman's storage", "sandboxes of Podman", host_checks.podman_storage),
    Check("Docker's socket", "nothing but sandboxes of Docker", host_checks.docker_socket),
    Check("Slurm", "running services as cluster jobs only", host_checks.slurm),
]


def of_kind(kind: SandboxKind) -> Check:
    """Returns a check of whether the service can make sandboxes of that kind."""

    def run() -> Finding:
        try:
            made = provider(kind)
        except SandboxError as error:
            return Finding(Status.MISSING, error.message, error.hint)
        strongest = f"takes {made.kind}, the strongest that works"
        return Finding(Status.OK, strongest if kind == "auto" else "works")

    return Check(f"--sandbox {kind}", "sandboxes of the service", run)


def of_neighbour(one: Neighbour) -> Check:
    """Returns a check of the release that is installed here."""

    def run() -> Finding:
        release = one.installed()
        if release is None:
            return NOT_INSTALLED
        found = f"{release}, tested: {one.tested}"
        if one.supports(release):
            return Finding(Status.OK, found)
        return Finding(Status.LIMITED, f"{found}: outside the range", one.hint())

    return Check(one.title, "working with it", run)


def doctor(*, as_json: Json = False) -> int:
    """List the kinds of sandbox that this host supports, how to get the rest, what is beside it.

    Exits with code 1 if no isolating kind works.
    """
    kinds = [of_kind(kind) for kind in (*ISOLATING, "auto")]
    tried = [*kinds, *HOST, *(of_neighbour(one) for one in neighbours().values())]
    found = zip(tried, run_all(tried, budget_s=BUDGET_S), strict=True)
    checks, findings = zip(*(row for row in found if row[1] is not NOT_INSTALLED), strict=True)
    if as_json:
        rows = (
            {"check": check.name, "purpose": check.purpose, **asdict(finding)}
            for check, finding in zip(checks, findings, strict=True)
        )
        print(json.dumps([*rows]))
    else:
        Screen(sys.stdout).table(_table(checks, findings))
    isolating = findings[: len(ISOLATING)]
    return 0 if any(finding.status is Status.OK for finding in isolating) else 1


def run_all(checks: Sequence[Check], *, budget_s: float) -> list[Finding]:
    """Returns what each check found, in the order of `checks`, after `budget_s` at most."""
    findings = [Finding(Status.MISSING, f"no answer within {budget_s:g} s") for _ in checks]

    def run(index: int) -> None:
        try:
            findings[index] = checks[index].run()
        except Exception as error:  # a broken check must not stop the others
            findings[index] = Finding(Status.MISSING, f"this check failed: {error!r}")

    # Daemons: a check that hangs in the kernel must not keep the program from ending.
    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(checks))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + budget_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return list(findings)


def _table(checks: Sequence[Check], findings: Sequence[Finding]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for check, finding in zip(checks, findings, strict=True):
        here = Text(finding.found)
        if finding.status is not Status.OK:
            here.append(f"\nneeded for {check.purpose}", style="dim")
        if finding.next_step:
            here.append(f"\n→ {finding.next_step}", style="bold")
        table.add_row(Text(finding.status, style=COLOURS[finding.status]), check.name, here)
    return table
