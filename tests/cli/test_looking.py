"""Commands that look at a service with rollouts of every kind: each question takes one command."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from ptyprocess import PtyProcessUnicode

from prorl_service.cli.top_view import Rates
from prorl_service.client import RolloutClient
from prorl_service.local import LocalProcess
from prorl_service.schemas import Blame
from tests.cli.called import called, printed
from tests.page.showcase import FAILURES, group, world
from tests.programs import CLI

pytestmark = pytest.mark.processes

NOBODY = "http://127.0.0.1:9"
HOME, SEQUENCES = "\x1b[H", re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
"""What begins a screen, and what colours it."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalProcess]:
    with world(tmp_path_factory.mktemp("world"), rollouts=160) as running:
        yield running


@pytest.fixture
def client(service: LocalProcess) -> Iterator[RolloutClient]:
    with RolloutClient(service.url) as connected:
        yield connected


def prorl(*arguments: object, service: LocalProcess) -> str:
    """Runs a command that looks at `service`; returns what it prints."""
    shown = printed(*arguments, "--url", service.url)
    assert "\x1b" not in shown
    return shown


# --- questions of a person ------------------------------------------------------------------------


def test_what_hangs_is_cancelled(service: LocalProcess, client: RolloutClient) -> None:
    client.submit([group(f"stuck-{number}", "slow", [0.0] * 3) for number in range(2)])
    assert prorl("cancel", "stuck-0.1", service=service) == "1 rollout cancelled\n"
    assert "because | it was not needed" in prorl("show", "stuck-0.1", service=service)
    assert prorl("cancel", "stuck-*", "stuck-1", service=service) == "5 rollouts cancelled\n"
    refused = called("cancel", "stuck-1", "--url", service.url)
    assert "no rollout of 'stuck-1' is unfinished" in refused.stderr


def test_which_rollouts_failed_in_a_step_and_why(service: LocalProcess) -> None:
    shown = prorl("list", "--state", "failed", "--policy-version", "7", service=service)
    for blame in FAILURES:
        assert re.search(rf"special-{blame}\.0 +task-{blame} +failed .* {blame}: ", shown)
        assert f"2 rollouts failed, blame {blame}: {FAILURES[blame].__name__}: " in shown
    assert "to do: raise the limit of EVAL" in shown
    assert "step7-" not in shown
    assert "special-evaluator" not in prorl("list", "--policy-version", "6", service=service)


def test_which_tasks_are_always_0(service: LocalProcess) -> None:
    shown = prorl("tasks", "--task", "task-*", "--limit", "3", service=service)
    assert re.match(r"task +agent +rollouts +failed +success +reward +informative +trend", shown)
    assert "3 of " in shown
    lines = prorl("tasks", "--task", "task-*", "--sort", "best", "--json", service=service)
    rates = [json.loads(line)["success_rate"] or 0.0 for line in lines.splitlines()]
    assert len(rates) > 3
    assert rates == sorted(rates, reverse=True)
    assert "no rollout of such a task" in prorl("tasks", "--task", "none", service=service)


def test_why_a_reward_is_0(service: LocalProcess) -> None:
    shown = prorl("show", "special-rewritten.0", service=service)
    [rewarded] = re.findall(r"turn (\d)(?:(?!\nturn ).)*; reward 0\.25\n", shown, re.DOTALL)
    assert rewarded == "2"
    verdict = shown[shown.rindex("reward 0") :]
    assert '"failed": 4' in verdict
    assert "tests  0" in verdict
    shown = prorl("show", "special-evaluator.0", service=service)
    assert "failed in EVAL, blame evaluator" in shown
    assert "error | EvaluatorError: the tests did not end" in shown
    assert "to do | raise the limit of EVAL" in shown


def test_what_siblings_did_differently(service: LocalProcess, client: RolloutClient) -> None:
    shown = prorl("show", "step7-group0", service=service)
    place, _, variants = shown.partition("first difference: ")[2].partition("\n")
    found = re.fullmatch(r"turn (\d+), (says|output of bash)", place)
    assert found
    texts = [client.text(f"step7-group0.{index}") for index in range(8)]
    at = int(found[1]) - 1
    said = {text.turns[at].raw for text in texts}
    assert len(said) > 1 or found[2] != "says"
    for earlier in range(at):
        assert len({text.turns[earlier].raw for text in texts}) == 1
    for index in range(8):
        assert re.search(rf"\.{index} \(reward [\d.]+\)", variants)


def test_what_was_said_is_found(service: LocalProcess) -> None:
    shown = prorl("list", "--text", "1 failed, 3 pass", "--limit", "2", service=service)
    assert re.search(r"turn 2, output of bash: .*1 failed, 3 passed in 0", shown)
    assert "2 rollouts; there are more" in shown
    assert "ended rollouts is searched" in shown
    assert "needs a letter or a digit" in called("list", "--text", "!").stderr


# --- each command ---------------------------------------------------------------------------------


def test_status_tells_whether_it_is_alive_and_what_failed(service: LocalProcess) -> None:
    shown = prorl("status", service=service)
    assert f"{service.url}: healthy, prorl" in shown
    assert "run showcase" in shown
    assert re.search(r"failures +2 task, 2 agent", shown)
    assert json.loads(prorl("status", "--json", service=service))["run"] == "showcase"
    top = prorl("top", service=service)
    assert timeless(top).splitlines()[1:8] == timeless(shown).splitlines()[1:8]


def timeless(shown: str) -> str:
    return re.sub(r"\d+ s\b", "", shown)


def test_groups_are_listed_with_what_their_rewards_say(service: LocalProcess) -> None:
    shown = prorl("list", "--outcome", "informative", "--limit", "3", service=service)
    assert shown.count("informative") == 3
    assert "3 groups; there are more (--limit)" in shown
    lines = prorl("list", "--groups", "--json", "--limit", "500", service=service).splitlines()
    groups = [json.loads(line) for line in lines]
    assert {"special-slow", "step0-group0"} <= {group["group_id"] for group in groups}
    assert "no rollouts meet these conditions" in prorl("list", "--task", "none", service=service)


def test_hostile_text_is_shown_and_not_obeyed(service: LocalProcess) -> None:
    shown = prorl("show", "special-hostile.0", "--full", service=service)
    assert "<script>alert(1)</script>" in shown
    assert "\\u202eevil" in shown
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u200b]", shown)


def test_long_output_is_folded_unless_it_is_wanted(service: LocalProcess) -> None:
    folded = prorl("show", "special-huge.0", service=service)
    assert len(folded) < 20_000
    assert "--full shows them" in folded
    assert len(prorl("show", "special-huge.0", "--full", service=service)) > 5_000_000


def test_a_group_is_written_as_a_page(service: LocalProcess, tmp_path: Path) -> None:
    file = tmp_path / "group.html"
    prorl("show", "step7-group0.3", "--html", file, service=service)
    page = file.read_text()
    assert "<title>Group step7-group0</title>" in page
    assert '"/v1/rollouts/step7-group0.7/text"' in page


def test_logs_follow_what_happens(service: LocalProcess, client: RolloutClient) -> None:
    assert "special-sandbox.0 failed, blame sandbox" in prorl("logs", service=service)
    command = [*CLI, "logs", "-f", "--url", service.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        for line in following.stdout:
            if " hello " in line:
                break
        client.cancel(["special-slow.3"])
        seen = next(line for line in following.stdout if "special-slow.3" in line)
        following.send_signal(signal.SIGINT)
    assert "cancelled" in seen
    assert following.returncode == 0


class Top:
    """`prorl top` in a terminal, as a person sees it."""

    def __init__(self, url: str, rows: int, columns: int) -> None:
        command = [*CLI, "top", "--every-s", "0.2", "--url", url]
        # They would count for more than the terminal's size.
        own = {name: os.environ[name] for name in os.environ.keys() - {"COLUMNS", "LINES"}}
        self.process = PtyProcessUnicode.spawn(command, dimensions=(rows, columns), env=own)
        self._shown = ""

    def see(self, *texts: str) -> str:
        """Returns the first whole screen that has all texts."""
        while True:
            self._shown += self.process.read()
            for screen in (SEQUENCES.sub("", one) for one in self._shown.split(HOME)):
                if all(text in screen for text in texts):
                    self._shown = ""
                    return screen

    def end(self) -> int:
        with suppress(EOFError):
            while True:
                self.process.read()
        return int(self.process.wait())


def test_top_shows_what_is_stuck_and_obeys_keys(
    service: LocalProcess, client: RolloutClient
) -> None:
    top = Top(service.url, 24, 100)
    screen = top.see("special-slow.0", "oldest first", "; RUN ", "tokens/s", "q quit")
    assert "RUN of 15 min 0 s; waits for the agent's code" in screen
    lines = [line.rstrip() for line in screen.splitlines()]
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 24
    top.process.write("s")
    top.see("longest first")
    top.process.write("f")
    top.see("failed, newest first", "agent: agent gave up after 3 turns")
    top.process.write("\x1b[B\r")
    top.see("blame", "press a key to go back")
    top.process.write(" ")
    top.see("failed, newest first")
    top.process.write("q")
    assert top.end() == 0


def test_top_in_a_narrow_terminal_tells_of_failures(
    service: LocalProcess, client: RolloutClient
) -> None:
    top = Top(service.url, 16, 50)
    top.see("healthy")
    client.submit([group("late", "sandbox", [0.0])])
    screen = top.see("failed in the last minute: 1 sandbox", "late.0, ")
    assert max(len(line.rstrip()) for line in screen.splitlines()) <= 50
    top.process.write("q")
    assert top.end() == 0


def test_top_goes_on_while_the_service_does_not_answer() -> None:
    top = Top(NOBODY, 50, 200)
    top.see("asked again every 0.2 s")
    top.process.sendintr()
    assert top.end() == 0


def test_a_rate_is_that_of_the_last_minute(client: RolloutClient) -> None:
    now = client.status()
    rates = Rates()
    for at in range(0, 200, 10):
        now = now.model_copy(deep=True)
        now.ended = dict.fromkeys(now.ended, 0) | {next(iter(now.ended)): at * 2}
        now.failures = {Blame.TASK: at // 100}
        now.backends[0].sampled_tokens = at * 30
        rates.add(float(at), now)
    assert rates.line() == "2.00 rollouts/s, 30 tokens/s, failed: none in the last 60 s"
    now = now.model_copy(update={"failures": {Blame.TASK: 4}})
    rates.add(200.0, now)
    assert "failed: 3 task in the last 60 s" in rates.line()
    rates.add(210.0, now.model_copy(update={"started_at": 1.0}))
    assert rates.line() == "", "the service has started again"


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("show", "nobody.0"), "there is no rollout 'nobody.0'"),
        (("list", "--state", "sleeping"), "--state: Input should be 'queued'"),
    ],
)
def test_what_is_not_there_is_named(
    service: LocalProcess, command: tuple[str, ...], problem: str
) -> None:
    done = called(*command, "--url", service.url)
    assert done.returncode == 2
    assert problem in done.stderr


# --- exports --------------------------------------------------------------------------------------


def test_a_service_is_a_source_of_exports(service: LocalProcess, tmp_path: Path) -> None:
    file = tmp_path / "all.jsonl"
    printed("export", service.url, "--format", "jsonl", "--out", file)
    exported = {json.loads(line)["rollout_id"] for line in file.read_text().splitlines()}
    assert len(exported) >= 144
    assert {"step0-group0.0", "special-task.1", "special-huge.0"} <= exported
