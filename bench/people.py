"""What the people around a run need of the service, measured. Five minutes.

`questions`: a real browser answers questions about 5,000 rollouts of two runs, one of an earlier
service, from the page's first view on. A click is a press of the button; typing is none.
`upgrade`: services of each earlier release are killed at work and replaced by one of this checkout,
which takes over journal and weights; and a service is backed up at work, killed before, during or
after that, and its copy started elsewhere. A rollout is lost if its result differs, or if it does
not end well; so are weights that are not the newest. Needs the history of the repository.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import frame
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.net.callers import Role
from prorl_service.net.credentials import own_token
from prorl_service.shelf.history import HOURS
from tests.faults.releases import EARLIER, KILLS, Release, lost_in_restore, lost_in_upgrade
from tests.page.browser import Tab
from tests.page.chromium import browser
from tests.page.showcase import RUN, world
from tests.page.visit import sign_in

ROUNDS, QUICK_ROUNDS = 3, 1
ROLLOUTS, QUICK_ROLLOUTS, BEFORE = 2500, 128, "yesterday"
"""Rollouts of each run, and the name of the earlier one."""
FEW_CLICKS = 2


class Hand:
    """A person at the page."""

    def __init__(self, tab: Tab) -> None:
        self.tab = tab
        self.clicks = 0

    def click(self, selector: str) -> None:
        self.tab.click(selector)
        self.clicks += 1

    def open(self, view: str) -> None:
        self.click(f"nav.top a[href='#/{view}']")

    def fill(self, name: str, text: str) -> None:
        self.click(f"input[name={name}]")
        self.tab.type(text)
        self.tab.press("Enter")


def _stuck(hand: Hand) -> str:
    hand.click("a[href*='state=running']")
    return "the agent's code, "


def _night(hand: Hand) -> str:
    hand.click("main button:last-of-type")
    return "Last 24 hours"


def _learns(hand: Hand) -> str:
    hand.open("training")
    return "sampling/sampling_logp_difference/mean"


def _always_0(hand: Hand) -> str:
    hand.open("tasks")
    hand.fill("task_id", "task-plain")
    return "1 task"


def _better(hand: Hand) -> str:
    hand.open("training")
    hand.fill("other", BEFORE)
    return f"success, {BEFORE}"


def _changed(hand: Hand) -> str:
    hand.open("tasks")
    hand.fill("other", BEFORE)
    return "change, points"


def _said(hand: Hand) -> str:
    hand.open("rollouts")
    hand.fill("text", "1 failed, 3 passed")
    return "turn 2, output of bash"


def _blame(hand: Hand) -> str:
    hand.click("main ul.plain a")
    return "failed: "


def _slots(hand: Hand) -> str:
    hand.open("timeline")
    return "slots"


QUESTIONS: dict[str, Callable[[Hand], str]] = {
    "What is stuck, since when, and what does it wait for?": _stuck,
    "How did the night go?": _night,
    "Does it learn, and do engine and trainer agree?": _learns,
    "Is this task always 0?": _always_0,
    "Is this run better than the last?": _better,
    "Which tasks changed since the last run?": _changed,
    "In how many rollouts was this said?": _said,
    "Who is to blame for the failures, and why?": _blame,
    "What held the slots?": _slots,
}
"""What a person does from the first view on; returns a text of the answer."""


def questions(quick: bool) -> frame.Found:
    count = QUICK_ROLLOUTS if quick else ROLLOUTS
    with TemporaryDirectory() as name, browser() as chromium:
        directory = Path(name)
        with world(directory, rollouts=count, run=BEFORE):
            pass
        with world(directory, rollouts=count, run=RUN) as service:
            tab = chromium.tab()
            sign_in(tab, service.url, own_token() or "")
            rows = [_asked(tab, question) for question in QUESTIONS]
    answered = sum(row["clicks"] <= FEW_CLICKS for row in rows)
    headline = {
        "questions": len(rows),
        "questions_in_two_clicks": answered,
        "history_hours": HOURS,
        "roles": len(Role),
    }
    return frame.Found(rows, headline)


def _asked(tab: Tab, question: str) -> frame.Row:
    tab.evaluate("location.hash = '#/now'")
    tab.wait_for("Last 15 minutes", "main")
    hand = Hand(tab)
    tab.wait_for(QUESTIONS[question](hand), "main")
    return {"question": question, "clicks": hand.clicks}


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
    frame.run("people", {"questions": questions, "upgrade": upgrade})
