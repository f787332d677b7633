"""Whether a step trains on what the policy did, at the seams: `python -m bench.seams [PART...]`.

`owners`: a second training on the service of a first one, TRL and VeRL in all orders.
`never_wrong`: training with failures of every blame, a reward function of the user's, and kills.
`tripwire`: causes of a wrong policy, each by its test. `fields`: settings of the trainers by class.
`findings`: findings of a review, and their tests. `known.json` has causes and findings.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import result
from bench.seams import never_wrong, owners
from bench.trust.guarantees import ROOT, findings

KNOWN = json.loads(Path(__file__).with_name("known.json").read_text())
CLASSES = {
    "TRL": (
        ".venv",
        "from prorl_trl.settings import classified\n"
        "found = [one for of in classified().values() for one in of.values()]",
    ),
    "VeRL": (
        ".venv-verl",
        "from prorl_verl.fields import fields_of_verl\nfound = [*fields_of_verl().values()]",
    ),
}
"""Environment and program that lists the class of each setting, by trainer."""


def tripwire() -> result.Part:
    rows = [{"cause": name, "caught": _passes(test)} for name, test in KNOWN["causes"].items()]
    caught = sum(bool(row["caught"]) for row in rows)
    return rows, {"tripwire_causes": len(rows), "tripwire_caught": caught}


def _passes(test: str) -> bool:
    environment = ".venv-verl" if test.startswith("tests/verl") else ".venv"
    command = [str(ROOT / environment / "bin/python"), "-m", "pytest", "-q", test]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def fields() -> result.Part:
    rows, total = [], Counter[str]()
    for trainer, (environment, program) in CLASSES.items():
        python = str(ROOT / environment / "bin/python")
        printing = f"{program}\nimport json\nprint(json.dumps(found))"
        command = [python, "-W", "ignore", "-c", printing]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        counts = Counter[str](one or "unclassified" for one in found)
        total += counts
        rows += [{"trainer": trainer, "class": name, "fields": n} for name, n in counts.items()]
    unclassified = total["unclassified"]
    return rows, {"config_fields": total.total(), "config_fields_unclassified": unclassified}


if __name__ == "__main__":
    parts: dict[str, Callable[[], result.Part]] = {
        "owners": owners.measure,
        "never_wrong": never_wrong.measure,
        "tripwire": tripwire,
        "fields": fields,
        "findings": partial(findings, KNOWN["findings"]),
    }
    result.write_parts("seams", parts, sys.argv[1:])
