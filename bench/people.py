"""What the people around a run need of the service, measured. Two minutes.

`upgrade`: services of each earlier release are killed at work and replaced by one of this checkout,
which takes over journal and weights; and a service is backed up at work, killed before, during or
after that, and its copy started elsewhere. A rollout is lost if its result differs, or if it does
not end well; so are weights that are not the newest. Needs the history of the repository.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from bench import frame
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from tests.faults.releases import EARLIER, KILLS, Release, lost_in_restore, lost_in_upgrade

ROUNDS, QUICK_ROUNDS = 3, 1


def upgrade(quick: bool) -> frame.Found:
    rounds = range(QUICK_ROUNDS if quick else ROUNDS)
    with TemporaryDirectory() as name:
        directory = Path(name)
        model = directory / "model"
        build_tiny_model(model)
        upgraded, restored = [], []
        for commit in EARLIER:
            earlier = Release.of(commit, directory / commit)
            lost = [lost_in_upgrade(earlier, directory / f"{commit}-{n}", model) for n in rounds]
            upgraded.append({"from": f"0.2.0 ({commit})", **_counted(lost)})
        for kill in KILLS:
            lost = [lost_in_restore(kill, directory / f"{kill}-{n}", model) for n in rounds]
            restored.append({"killed": f"{kill} the backup", **_counted(lost)})
    headline = {
        "upgrade_lost": sum(row["lost"] for row in upgraded),
        "restore_lost": sum(row["lost"] for row in restored),
    }
    return frame.Found([*upgraded, *restored], headline)


def _counted(lost: list[list[str]]) -> frame.Row:
    return {"services": len(lost), "lost": sum(map(len, lost))}


if __name__ == "__main__":
    frame.run("people", {"upgrade": upgrade})
