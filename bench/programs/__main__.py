"""Whether a reward says what the policy did: `python -m bench.programs [PART...]`.

`findings`: findings of a review, and their tests. `cases`: programs, SDKs, attacks, budgets: each
a case of a test that runs it whole. `directories`: task directories of Harbor below `$HARBOR_SETS`.
`graders`: what `bench.harbor_guard`, `bench.swe_general` and `bench.swe_offline` have measured.
`known.json` has the tests of findings and cases.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from bench import result
from bench.trust.guarantees import ROOT, findings
from prorl_service.cli.harbor_reading import read_all

KNOWN = json.loads(Path(__file__).with_name("known.json").read_text())
GRADERS = {
    "harbor_guard": ("harbor_cheats_tried", "harbor_cheats_rewarded"),
    "swe_general": ("swe_selectors_tried", "swe_selectors_resolved"),
    "swe_offline": ("swe_grading_cost_ratio",),
}


def cases() -> result.Part:
    rows = [row for kind, tests in KNOWN["cases"].items() for row in _cases(kind, tests)]
    all_, passed = (
        Counter(str(row["kind"]) for row in rows if row["passed"] or not only)
        for only in (False, True)
    )
    return rows, {
        "programs": all_["program"],
        "graded_as_printed": passed["program"],
        "sdk_cases": all_["sdk"],
        "sdk_cases_ok": passed["sdk"],
        "dos_victims_failed": all_["attack"] - passed["attack"],
        "budget_overruns": all_["budget"] - passed["budget"],
        "egress_leaks": all_["egress"] - passed["egress"],
    }


def _cases(kind: str, tests: list[str]) -> list[dict[str, object]]:
    """Runs all cases of the tests; a skip counts as a failure."""
    with TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *tests]
        subprocess.run(command, cwd=ROOT, check=False, env=os.environ | {"PRORL_TEST_WHOLE": "1"})
        found = ElementTree.parse(report).iter("testcase")
        return [
            {"kind": kind, "case": case.attrib["name"], "passed": _has_passed(case)}
            for case in found
        ]


def _has_passed(case: ElementTree.Element) -> bool:
    return not {"failure", "error", "skipped"} & {part.tag for part in case}


def directories() -> result.Part:
    """Reads every directory that is a set of tasks."""
    top = Path(os.environ["HARBOR_SETS"])
    rows = []
    for set_ in sorted({path.parent.parent for path in top.rglob("task.toml")}):
        read, refused = read_all([set_], strict=False, with_probes=True)
        rows.append({"set": f"{set_.relative_to(top)}", "read": len(read), "refused": len(refused)})
        print(*(f"{one.directory}: {one.reason}" for one in refused), sep="\n")
    return rows, {
        "harbor_directories_read": sum(int(str(row["read"])) for row in rows),
        "harbor_directories_refused": sum(int(str(row["refused"])) for row in rows),
    }


def graders() -> result.Part:
    headlines = {
        name: json.loads((result.RESULTS / f"{name}.json").read_text())["headline"]
        for name in GRADERS
    }
    return [], {
        figure: headlines[name][figure] for name, figures in GRADERS.items() for figure in figures
    }


if __name__ == "__main__":
    parts: dict[str, Callable[[], result.Part]] = {
        "findings": partial(findings, KNOWN["findings"]),
        "cases": cases,
        "directories": directories,
        "graders": graders,
    }
    result.write_parts("programs", parts, sys.argv[1:])
