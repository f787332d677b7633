"""Every view in a real browser, on a service with 1,000 rollouts: what it shows is what the service
says, keys and clicks do what they promise, and what happens is seen without a reload."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from prorl_service.client import RolloutClient
from prorl_service.net.credentials import page_link
from tests.page.browser import Tab
from tests.page.showcase import FAILURES, METRICS, STEPS, group
from tests.page.visit import FORM, answer, offer, saved, see, show, visible

pytestmark = [pytest.mark.browser, pytest.mark.processes]


# --- who may look ---------------------------------------------------------------------------------


def test_the_token_is_asked_for_and_stays_in_the_tab(stranger: Tab, url: str, token: str) -> None:
    stranger.open(f"{url}/#/groups")
    assert "prorl token" in stranger.wait_for("asks for its token")
    assert "bearer" not in stranger.text()
    offer(stranger, "not-the-token")
    stranger.wait(
        f"sessionStorage.getItem('prorl-token') === 'not-the-token' && {there(FORM)} !== null"
    )
    offer(stranger, token)
    stranger.wait_for("step7-group0", "main")
    assert stranger.evaluate("Object.values(sessionStorage)") == [token]
    assert stranger.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    loaded = "performance.getEntries().map((one) => one.name).join()"
    assert token not in stranger.evaluate(f"location.href + document.title + {loaded}")
    assert token not in stranger.evaluate("document.documentElement.outerHTML")
    assert all("401 (Unauthorized)" in one for one in stranger.problems), stranger.problems


def test_a_link_signs_in_and_leaves_no_token_in_the_address(
    stranger: Tab, url: str, token: str
) -> None:
    stranger.open(page_link(url, token))
    stranger.wait_for("Last 15 minutes", "main")
    assert token not in stranger.evaluate("location.href")
    assert stranger.evaluate("Object.values(sessionStorage)") == [token]


def there(selector: str) -> str:
    return f"document.querySelector({selector!r})"


# --- what views show ------------------------------------------------------------------------------


def test_now_shows_the_services_status(tab: Tab, http: httpx.Client) -> None:
    status = answer(http, "/v1/status")
    shown = show(tab, "now", "Last 15 minutes")
    for fact in (
        f"policy version {status['policy_version']}",
        f"done {status['ended']['done']}",
        f"failed {sum(status['failures'].values())}",
        f"{status['running']['run']} of {status['workers']['run']}",
        status["backends"][0]["url"],
        "healthy",
    ):
        assert fact in shown
    for blame, n in status["failures"].items():
        assert f"{blame} {n}" in shown
    tab.wait("document.querySelectorAll('main canvas').length >= 6")
    see(tab, "Tokens sampled a second")
    load = answer(http, "/v1/history", since=-900)["load"]
    for name in ("ended_per_s", "sampled_tokens_per_s"):
        assert max(load[name]) > 0, name
    tab.click("main button:nth-of-type(3)")
    tab.wait_for("Last 6 hours", "main")
    tab.wait("document.querySelectorAll('main canvas').length >= 6")
    assert "range=6" in tab.evaluate("location.hash")
    assert "alive policy version 8" in tab.text("nav.top")
    tab.click("main a[href='#/rollouts?state=failed&blame=sandbox']")
    shown = tab.wait_for("sandbox gave up after 3 turns", "table")
    assert "special-sandbox.1" in shown
    assert "special-agent" not in shown


def test_groups_that_teach_nothing_are_marked(tab: Tab, http: httpx.Client) -> None:
    rows = answer(http, "/v1/groups", limit=100)["groups"]
    shown = show(tab, "groups", rows[-1]["group_id"])
    outcomes = [row["outcome"] for row in rows]
    for outcome, text in (
        ("all_zero", "all 0"),
        ("all_one", "all 1"),
        ("informative", "informative"),
    ):
        assert visible(tab, f".outcome.{outcome}") == outcomes.count(outcome) > 0
        assert text in shown
    assert visible(tab, ".dots .dot") == sum(row["n"] for row in rows)
    assert visible(tab, ".dots .dot.failed") == 2 * len(FAILURES)


def test_a_bar_of_the_histogram_filters(tab: Tab, http: httpx.Client) -> None:
    show(tab, "groups", "step7-group0")
    bars = tab.wait_for("0.9", ".histogram").split()
    means = [row["mean_reward"] for row in answer(http, "/v1/groups", limit=100)["groups"]]
    assert int(bars[0]) == len([mean for mean in means if mean is not None and mean < 0.1]) > 0
    low = answer(http, "/v1/groups", reward_min=0, reward_max=0.1, limit=100)["groups"]
    tab.click(".histogram button")
    tab.wait(f"document.querySelectorAll('tbody tr').length === {len(low)}")
    assert "reward_max=0.1" in tab.evaluate("location.hash")
    assert visible(tab, ".outcome.informative") == 0
    tab.click(".histogram button.current")
    tab.wait("document.querySelectorAll('tbody tr').length === 100")


def test_two_runs_are_shown_together(tab: Tab, http: httpx.Client) -> None:
    run = answer(http, "/v1/status")["run"]
    show(tab, f"training?other={run}", "Informative groups")
    assert f"success, {run}" in tab.wait_for(f"success, {run}", ".charts")
    assert "Nothing of run nobody" in show(tab, "training?other=nobody", "Nothing of run")
    shown = show(tab, f"tasks?other={run}", "that differ most")
    assert "change, points" in shown


def test_markdown_is_laid_out_on_demand_and_stays_text(tab: Tab) -> None:
    show(tab, "rollout/step7-group0.4", "Verdict")
    tab.press("4")
    tab.wait("document.querySelectorAll('.markdown').length > 0")
    assert visible(tab, ".markdown img, .markdown a, .markdown script") == 0
    assert "<b>Change no test.</b>" in tab.evaluate(
        "[...document.querySelectorAll('.markdown')].map((one) => one.textContent).join()"
    )


def test_a_failed_rollout_shows_its_blame_and_hint(tab: Tab) -> None:
    show(tab, "rollout/special-evaluator.0", "blame: evaluator")
    see(tab, "in EVAL", "the tests did not end", "What to do: raise the limit of EVAL")
    see(tab, "Turn 3", "git diff")  # what it had done before


def test_a_rollout_is_shown_whole(tab: Tab, http: httpx.Client) -> None:
    rows = answer(http, "/v1/rollouts", reward_max=0, limit=50)["rollouts"]
    texts = (answer(http, f"/v1/rollouts/{row['rollout_id']}/text") for row in rows)
    text = next(one for one in texts if any(turn["reasoning"] for turn in one["turns"]))
    show(tab, f"rollout/{text['rollout']['rollout_id']}", "Verdict: reward 0")
    see(tab, '"failed": 4', "<b>Change no test.</b>")
    for number, turn in enumerate(text["turns"]):
        see(tab, f"Turn {number + 1}", turn["text"].strip(), f"$ {STEPS[number][0]}")
    thought = next(turn["reasoning"] for turn in text["turns"] if turn["reasoning"]).strip()
    assert thought not in tab.text("main")
    tab.press("1")
    assert thought in tab.wait_for(thought, "main")
    tab.press("2")
    tab.wait("!document.querySelector('main').innerText.includes('git diff')")
    assert "sampled after" not in tab.text("main")
    tab.press("3")
    assert f"{text['turns'][0]['sampled_tokens']} tokens sampled" in tab.wait_for("sampled after")


def test_siblings_are_compared_up_to_the_first_difference(tab: Tab, http: httpx.Client) -> None:
    shown = show(tab, "compare/special-rewritten", "first difference")
    assert "special-rewritten.0 0 done" in shown
    assert "special-rewritten.1 1 done" in shown
    texts = [
        answer(http, f"/v1/rollouts/special-rewritten.{index}/text")["turns"] for index in (0, 1)
    ]
    same = [told(one) == told(other) for one, other in zip(*texts, strict=True)]
    first = same.index(False)
    assert shown.count("the same") == first
    cells = tab.evaluate(
        "[...document.querySelectorAll('.first-difference')].map((one) => one.textContent)"
    )
    assert len(cells) == 2
    assert cells[0] != cells[1]
    assert [visible(tab, ".different"), shown.count("first difference")] == [2, 2]
    tab.click(".choices input")
    tab.wait("document.querySelectorAll('.head').length === 1")


def told(turn: dict[str, Any]) -> tuple[Any, ...]:
    calls = [(call["arguments"], call["output"]) for call in turn["tool_calls"]]
    return turn["reasoning"], turn["text"], calls


def test_a_turn_shows_the_reward_that_was_earned_there(tab: Tab) -> None:
    show(tab, "rollout/special-rewritten.1", "reward 0.25")
    notes = "[...document.querySelectorAll('.turn .card.model header')].map((one) => one.innerText)"
    assert ["reward 0.25" in one for one in tab.evaluate(notes)] == [False, True, False]


@pytest.mark.parametrize("segment", [0, 1])
def test_tokens_show_what_was_sampled(tab: Tab, http: httpx.Client, segment: int) -> None:
    path = "/v1/rollouts/special-rewritten.1/tokens"
    tokens = answer(http, path, segment=segment, n=4096)
    show(tab, "tokens/special-rewritten.1", "segment 2")
    if segment:
        tab.click("main button:nth-of-type(2)")
        tab.wait_for("(what was before was left out)", ".tokens")
    tab.wait(f"document.querySelectorAll('.tokens > span').length === {tokens['length']}")
    kinds = tab.evaluate(
        "[...document.querySelectorAll('.tokens > span')].map((one) => one.className)"
    )
    assert [kind.startswith("sampled") for kind in kinds] == [bool(one) for one in tokens["mask"]]
    assert kinds.count("prompt") == tokens["prompt_tokens"]
    at = tokens["mask"].index(1)
    title = tab.evaluate(f"document.querySelectorAll('.tokens > span')[{at}].title")
    assert f"id {tokens['ids'][at]}\n" in title
    assert f"logprob {tokens['logprobs'][at]}\n" in title
    assert "policy version 7" in title
    assert "<|im_start|>" in tab.text(".tokens") or segment


def test_the_timeline_has_a_bar_a_rollout(tab: Tab, http: httpx.Client) -> None:
    show(tab, "timeline?minutes=60", "slots")
    count = answer(http, "/v1/rollouts", limit=1, count=True)["matches"]
    tab.wait(f"document.querySelectorAll('svg.timeline a').length === {count}")
    assert visible(tab, "svg.timeline .stage.run") > count - 10 > 900
    assert visible(tab, "svg.timeline .mark.zero") > 0
    titles = tab.evaluate(
        "[...document.querySelectorAll('svg title')].map((one) => one.textContent)"
    )
    assert sum(one.startswith("special-slow.") and ": running" in one for one in titles) == 4
    tab.click("main button")
    tab.wait("location.hash.includes('minutes=1')")
    (oldest,) = answer(http, "/v1/rollouts", sort="oldest", limit=1)["rollouts"]
    first = oldest["created_at"]
    show(tab, f"timeline?minutes=1&until={int(first) + 3}", "later")
    tab.wait("document.querySelectorAll('svg.timeline a').length > 0")
    titles = tab.evaluate(
        "[...document.querySelectorAll('svg title')].map((one) => one.textContent)"
    )
    assert any(one.startswith("step0-group0.0: done") for one in titles)
    tab.click(".actions button[title]")
    show(tab, f"timeline?minutes=1&until={int(first) - 60}", "0 rollouts in 0 slots")


def test_training_shows_what_each_version_got(tab: Tab, http: httpx.Client) -> None:
    versions = answer(http, "/v1/training")["versions"]
    shown = show(tab, "training", "informative")
    rows = [line.split("\t") for line in shown.splitlines() if line.count("\t") > 5][1:]
    assert len(rows) == len(versions) == 8
    for row, version in zip(rows, reversed(versions), strict=True):
        success = f"{100 * version['success_rate']:.0f} %"
        assert [row[0], row[1], row[3]] == [
            str(version["policy_version"]),
            str(version["rollouts"]),
            success,
        ]
    assert visible(tab, "canvas") == 4 + len(METRICS) - 1
    assert [one for one in METRICS if one != "step_time" and one not in shown] == []
    tab.evaluate("location.hash += '?metric=step_time'")
    tab.wait(f"document.querySelectorAll('canvas').length === {4 + len(METRICS)}")
    assert [blame for blame in FAILURES if f"{blame} 2" not in rows[0][7]] == []


# --- keys, and what changes -----------------------------------------------------------------------


def test_keys_move_between_turns_and_siblings(tab: Tab) -> None:
    show(tab, "rollout/step7-group0.3", "Turn 3")
    for key, turn in (("j", 1), ("j", 2), ("j", 3), ("k", 2)):
        tab.press(key)
        tab.wait(f"Math.abs({there(f'#turn-{turn}')}.getBoundingClientRect().top - 50) < 25", 10)
    for key, sibling in (("l", 4), ("l", 5), ("h", 4)):
        tab.press(key)
        tab.wait_for(f"step7-group0.{sibling}", "h1")
    tab.press("t")
    tab.wait_for("Tokens of step7-group0.4", "h1")
    tab.evaluate("history.back()")
    tab.wait_for("Verdict", "main")
    tab.press("c")
    tab.wait_for("Choose up to 4 rollouts", "main")


def test_a_running_rollout_is_followed_without_a_reload(tab: Tab, url: str) -> None:
    with RolloutClient(url) as client:
        client.submit([group("followed", "plain", [1.0], tool_s=2.5)])
        shown = show(tab, "rollout/followed.0", "Turn 1")
        tab.evaluate("window.isKept = true")
        assert "… running" in shown
        assert "Turn 3" not in shown
        assert "Verdict" not in shown
        shown = tab.wait_for("Verdict: reward 1", "main")
        assert "Turn 3" in shown
        assert "… running" not in shown
        assert tab.evaluate("window.isKept") is True


def test_lists_and_timeline_follow_events(tab: Tab, url: str) -> None:
    show(tab, "timeline?minutes=1", "slots")
    with RolloutClient(url) as client:
        client.submit([group("seen-live", "plain", [1.0, 0.0])])
        tab.wait(
            "[...document.querySelectorAll('svg title')].some((one) =>"
            " one.textContent.startsWith('seen-live.1: done, reward 0'))"
        )
    assert "seen-live" in show(tab, "groups", "seen-live")


def test_a_view_or_rollout_that_is_not_there_is_named(tab: Tab) -> None:
    assert "There is no view nonsense" in show(tab, "nonsense", "no view")
    shown = show(tab, "rollout/nobody.0", "there is no rollout")
    assert "'nobody.0'" in shown
    assert all("404 (Not Found)" in one for one in tab.problems)
    tab.problems.clear()


# --- saved ----------------------------------------------------------------------------------------


def test_a_page_is_saved_and_opens_without_the_service(
    tab: Tab, other: Tab, tmp_path: Path
) -> None:
    show(tab, "rollout/special-hostile.0", "Verdict: reward 1")
    button = "button[title^='this rollout and its siblings']"
    file = saved(tab, button, tmp_path / "special-hostile.html")
    other.open(file.as_uri())
    assert "special-hostile" in other.wait_for("all 1", "main")
    show(other, "rollout/special-hostile.0", "Verdict: reward 1")
    assert visible(other, "main .hidden-character") > 0
    show(other, "tokens/special-hostile.0", "prompt")
    other.wait("document.querySelectorAll('.tokens > span').length > 100")
    assert other.problems == []
    assert other.hosts == {""}
