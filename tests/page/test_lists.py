"""Lists in a real browser: filters, order, search, suggestions, saved rows, empty ones, a phone."""

import csv
from pathlib import Path

import httpx
import pytest

from prorl_service import local
from prorl_service.net.credentials import own_token
from tests.page.browser import Tab
from tests.page.showcase import FAILURES
from tests.page.visit import answer, saved, show, sign_in, visible

pytestmark = [pytest.mark.browser, pytest.mark.processes]


def test_failed_rollouts_are_listed_with_blame_and_reason(tab: Tab, http: httpx.Client) -> None:
    rows = answer(http, "/v1/rollouts", state="failed")["rollouts"]
    shown = show(tab, "rollouts?state=failed", "special-service.1")
    assert visible(tab, "tbody tr") == len(rows) == 2 * len(FAILURES)
    for row in rows:
        assert row["rollout_id"] in shown
        assert f"failed: {row['error']['blame']}" in shown
        assert row["error"]["message"] in shown


def test_a_stuck_rollout_is_found_and_says_what_it_waits_for(tab: Tab, http: httpx.Client) -> None:
    (row,) = answer(http, "/v1/rollouts", sort="oldest", state="running", limit=1)["rollouts"]
    shown = show(tab, "rollouts?sort=oldest&state=running", row["rollout_id"])
    assert "the agent's code, " in shown
    assert "rollouts match" in shown
    tab.click("main tbody a")
    shown = tab.wait_for("waits for", "h1 + .facts")
    assert "RUN for" in shown
    assert "allowed" in shown
    assert "RUN \N{EN DASH}" not in shown
    assert "EVAL \N{EN DASH}" in shown


def test_names_are_found_by_a_part_and_counted(tab: Tab, http: httpx.Client) -> None:
    matches = answer(http, "/v1/rollouts", group_id="*7-group*", count=True)["matches"]
    shown = show(tab, "rollouts?group_id=7-group&sort=worst", "rollouts match")
    assert shown.splitlines().count("step7-group0.0") <= 1
    assert f"{matches:,} rollouts match" in shown


def test_rows_are_saved_as_csv(tab: Tab, tmp_path: Path, http: httpx.Client) -> None:
    show(tab, "rollouts?state=failed", "rollouts match")
    with saved(tab, ".actions button", tmp_path / "rollouts.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    expected = answer(http, "/v1/rollouts", state="failed", limit=500)["rollouts"]
    assert [row["rollout_id"] for row in rows] == [row["rollout_id"] for row in expected]


def test_all_that_matches_is_saved_whatever_the_order(tab: Tab, tmp_path: Path) -> None:
    shown = show(tab, "rollouts?sort=best", "rollouts match")
    matches = next(line for line in shown.splitlines() if "rollouts match" in line).split()[0]
    file = saved(tab, ".actions button", tmp_path / "rollouts.csv")
    assert len(file.read_text().splitlines()) == 1 + int(matches.replace(",", "")) > 501


def test_tasks_show_their_success_and_lead_to_their_rollouts(tab: Tab, http: httpx.Client) -> None:
    rows = answer(http, "/v1/tasks", limit=500)["tasks"]
    shown = show(tab, "tasks", "Ended rollouts only")
    assert visible(tab, "tbody tr") == len(rows)
    for row in rows:
        assert row["task_id"] in shown
    assert visible(tab, "svg.trend") == sum(len(row["trend"]) > 1 for row in rows) > 0
    tab.click("tbody a")
    tab.wait_for("rollouts match", "main")
    assert f"task_id={rows[0]['task_id']}" in tab.evaluate("location.hash")


def test_lists_continue_with_older_rollouts(tab: Tab) -> None:
    show(tab, "rollouts", "special-slow.0")
    first = tab.text("tbody")
    tab.click(".pages button")
    tab.wait("!document.querySelector('tbody').innerText.includes('special-slow')")
    older = tab.text("tbody").splitlines()
    assert not set(first.splitlines()) & {line for line in older if line.startswith("step")}
    tab.click(".pages button")
    tab.wait_for("special-slow.0", "tbody")


# --- search, suggestions, empty lists, a phone ----------------------------------------------------


def test_what_was_said_is_found_and_marked(tab: Tab, http: httpx.Client) -> None:
    matches = answer(http, "/v1/rollouts", text="1 failed, 3 passed", count=True)["matches"]
    show(tab, "rollouts", "rollouts match")
    tab.click("input[type=search]")
    tab.type("1 failed, 3 pass")
    tab.press("Enter")
    shown = tab.wait_for(f"{matches:,} rollouts match", "main")
    assert "ended rollouts is searched" in shown
    assert "turn 2, output of bash:" in shown
    assert tab.text("tbody mark") == "1 failed, 3 pass"
    tab.click("tbody .excerpt")
    tab.wait_for("Verdict", "main")
    first = "[...CSS.highlights.get('sought')][0]"
    assert tab.wait(f"{first}.toString()") == "1 failed, 3 pass"
    box = f"{first}.getBoundingClientRect()"
    tab.wait(f"{box}.top > 50 && {box}.bottom < innerHeight")
    assert "<script>alert(1)" in show(tab, "rollouts?text=alert 1", "special-hostile.0")
    assert visible(tab, "tbody script, tbody img") == 0


def test_a_match_in_folded_text_is_unfolded(tab: Tab) -> None:
    show(tab, "rollout/special-hostile.0?text=not bold", "Verdict")
    tab.wait("CSS.highlights.get('sought').size === 3")
    show(tab, "rollout/step7-group0.3?text=now the tests", "Verdict")
    tab.wait("document.querySelector('details.reasoning')?.open !== false")


def test_filters_suggest_names_that_are_there(tab: Tab, http: httpx.Client) -> None:
    rows = answer(http, "/v1/rollouts", limit=100)["rollouts"]
    show(tab, "rollouts", "rollouts match")

    def suggested(name: str) -> set[str]:
        options = f"[...document.querySelectorAll('#seen-{name} option')].map((one) => one.value)"
        return set(tab.wait(f"({options}).length && {options}"))

    assert suggested("agent") == {"showcase"}
    assert suggested("task_id") >= {row["task_id"] for row in rows}
    tab.click("input[name=run]")
    assert suggested("run") == {"showcase"}


def test_a_list_without_rows_says_why_once(tab: Tab) -> None:
    for view, what in (("rollouts", "rollout"), ("groups", "group"), ("tasks", "ended rollout")):
        text = f"No {what} meets these conditions."
        shown = show(tab, f"{view}?task_id=nobody", text)
        assert shown.count(text) == 1
        assert "no rewards yet" not in shown
        tab.click("main p.actions button")
        tab.wait_for("task-plain", "table")


def test_an_empty_service_says_how_to_begin_and_a_dead_one_is_grey(
    stranger: Tab, tmp_path: Path
) -> None:
    with local.service([], log=tmp_path / "log", options=["--sandbox", "process"]) as service:
        token = own_token()
        assert token is not None
        sign_in(stranger, service.url, token)
        shown = show(stranger, "groups", "To begin:")
        assert "prorl try AGENT" in shown
        assert f"prorl check tasks.jsonl --url {service.url}" in shown
        show(stranger, "now", "Stages")
        assert visible(stranger, "main.stale") == 0
    stranger.wait("document.querySelector('main.stale') !== null")
    assert "the service does not answer" in stranger.text("nav.top")


def test_on_a_phone_the_reward_is_within_the_screen(tab: Tab) -> None:
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    tab.call("Emulation.setDeviceMetricsOverride", **size)
    show(tab, "rollouts?state=done", "rollouts match")
    tab.wait("document.querySelector('tbody .reward').getBoundingClientRect().right < 390")
    labels = "[...document.querySelectorAll('.filters label')].filter((one) => one.offsetParent)"
    assert tab.evaluate(f"{labels}.length") == 1
    tab.click(".more-filters")
    tab.wait(f"{labels}.length > 5")
    show(tab, "compare/special-rewritten", "first difference")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert tab.evaluate("document.querySelector('.cell').clientWidth") > 200
