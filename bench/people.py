"""What the people around a run need of the service, measured. Ten minutes.

`questions`: a real browser answers questions about 5,000 rollouts of two runs, one of an earlier
service, from the page's first view on. A click is a press of the button; typing is none.
`costs`: the page's size, and searches of 100,000 rollouts, as `bench.eyes` measures them.
`stumbles`: what is left of the trials with new users; a list.
`upgrade`: services of each earlier release are killed at work and replaced by one of this checkout,
which takes over journal and weights; and a service is backed up at work, killed before, during or
after that, and its copy started elsewhere. A rollout is lost if its result differs, or if it does
not end well; so are weights that are not the newest. Needs the history of the repository.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from bench import eyes, frame
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


STUMBLES_LEFT = (
    "names of VeRL's groups are 54 characters wide",
    "a second training of one service continues the curves of the first",
)
"""What three new users stumbled over, who had the pages alone, and is as it was."""


Step = str | tuple[str, str]
"""Selector of what is clicked; or an input's name, which is clicked, and a text that is typed."""


def _view(name: str) -> str:
    return f"nav.top a[href='#/{name}']"


QUESTIONS: dict[str, tuple[str, list[Step]]] = {
    "What is stuck, since when, and what does it wait for?": (
        "the agent's code, ",
        ["a[href*='state=running']"],
    ),
    "How did the night go?": ("Last 24 hours", ["main button:last-of-type"]),
    "Does it learn, and do engine and trainer agree?": (
        "sampling/sampling_logp_difference/mean",
        [_view("training")],
    ),
    "Is this task always 0?": ("1 task", [_view("tasks"), ("task_id", "task-plain")]),
    "Is this run better than the last?": (
        f"success, {BEFORE}",
        [_view("training"), ("other", BEFORE)],
    ),
    "Which tasks changed since the last run?": (
        "change, points",
        [_view("tasks"), ("other", BEFORE)],
    ),
    "In how many rollouts was this said?": (
        "turn 2, output of bash",
        [_view("rollouts"), ("text", "1 failed, 3 passed")],
    ),
    "Who is to blame for the failures, and why?": ("failed: ", ["main ul.plain a"]),
    "What held the slots?": ("slots", [_view("timeline")]),
}
"""A text of the answer, and what a person does from the first view on."""


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
    answer, steps = QUESTIONS[question]
    tab.evaluate("location.hash = '#/now'")
    tab.wait_for("Last 15 minutes", "main")
    for step in steps:
        if isinstance(step, str):
            tab.click(step)
        else:
            name, text = step
            tab.click(f"input[name={name}]")
            tab.type(text)
            tab.press("Enter")
    tab.wait_for(answer, "main")
    return {"question": question, "clicks": len(steps)}


def costs(quick: bool) -> frame.Found:
    page, lists = eyes.page(quick), eyes.lists(quick)
    searches = [row for row in lists.rows if "text:" in str(row["what"])]
    headline = {
        "page_kb": page.headline["page_kb"],
        "search_ms_at_100k": max(row["cpu_ms"] for row in searches),
    }
    return frame.Found([*page.rows, *searches], headline)


def stumbles(_: bool) -> frame.Found:
    """Lists what is left of the trials with new users, who measure more than a program can."""
    rows = [{"stumble": one} for one in STUMBLES_LEFT]
    return frame.Found(rows, {"newcomer_stumbles_left": len(rows)})


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
    frame.run(
        "people", {"questions": questions, "costs": costs, "stumbles": stumbles, "upgrade": upgrade}
    )
