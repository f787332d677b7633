import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from prorl_service.schemas import (
    Blame,
    ErrorInfo,
    FinishReason,
    Message,
    Rollout,
    RolloutState,
    Sampling,
    Segment,
    Task,
    ToolCallRecord,
    Trajectory,
    Turn,
)
from recipes.demo.report import Headline, Step, write_curve, write_summary
from recipes.demo.viewer import Entry, write_page

HOSTILE = "</script><script>alert(1)</script><!-- {{script}} & \u2028 <img src=x onerror=a()>"
TASK = Task(task_id="t", agent="math", messages=[Message(role="user", content=HOSTILE)])
CURVE = [Step(step, step / 4, step / 4, 1e-5) for step in range(1, 5)]
HEADLINE = Headline(0.2, 0.9, 1e-5, 20.0, 1.5, 90.0)


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.data = ""
        self._is_data = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self._is_data = ("id", "data") in attrs

    def handle_data(self, data: str) -> None:
        if self._is_data:
            self.data += data

    def handle_endtag(self, tag: str) -> None:
        self._is_data = False


def done() -> Rollout:
    call = ToolCallRecord(name="bash", arguments={"command": HOSTILE}, output=HOSTILE)
    turn = Turn(
        segment=0,
        start=0,
        stop=2,
        text=HOSTILE,
        finish_reason="stop",
        tool_calls=[call],
        model_s=0.1,
        backend="b",
    )
    segment = Segment(
        prompt_ids=[5],
        response_ids=[1, 2, 3],
        loss_mask=[1, 1, 0],
        logprobs=[-0.12345678, -2.0, 0.0],
        policy_versions=[4, 4, -1],
    )
    trajectory = Trajectory(
        segments=[segment],
        turns=[turn],
        finish_reason=FinishReason.FINISHED,
        sampling=Sampling(),
    )
    return rollout("g.0", RolloutState.DONE, reward=1.0, trajectory=trajectory)


def failed() -> Rollout:
    error = ErrorInfo(kind="BackendError", blame=Blame.BACKEND, message=HOSTILE)
    return rollout("g.1", RolloutState.FAILED, error=error)


def rollout(rollout_id: str, state: RolloutState, **fields: Any) -> Rollout:
    return Rollout(
        rollout_id=rollout_id,
        group_id="g",
        task_id="t",
        agent="math",
        index=0,
        state=state,
        created_at=0.0,
        **fields,
    )


@pytest.fixture
def page(tmp_path: Path) -> Page:
    entries = [Entry(done(), TASK, "train", 3), Entry(failed(), TASK)]
    path = tmp_path / "page.html"
    write_page(path, entries, title="<b>Demo</b>", token_text=lambda id_: f"{HOSTILE}{id_}")
    return Page(path.read_text(encoding="utf-8"))


def test_hostile_text_stays_text(page: Page) -> None:
    assert page.tags.count("script") == 2
    assert not {"img", "b"} & {*page.tags}
    assert not [name for name in page.attributes if name.startswith("on")]


def test_the_page_loads_nothing(page: Page) -> None:
    assert not {"src", "href"} & page.attributes
    assert "link" not in page.tags


def test_the_page_holds_tokens_text_and_failures(page: Page) -> None:
    data = json.loads(page.data)
    assert data["vocabulary"].keys() == {"1", "2", "3", "5"}
    assert data["vocabulary"]["5"] == f"{HOSTILE}5"
    finished, broken = data["entries"]
    assert (finished["label"], finished["step"], finished["reward"]) == ("train", 3, 1.0)
    assert finished["turns"][0]["tool_calls"][0]["output"] == HOSTILE
    assert finished["segments"][0]["logprobs"] == [-0.1235, -2.0, 0.0]
    assert broken["error"]["message"] == HOSTILE
    assert broken["turns"] == []
    assert broken["finish_reason"] is None


def test_the_headline_of_the_summary_is_flat(tmp_path: Path) -> None:
    write_summary(tmp_path / "summary.json", HEADLINE, CURVE, {"seed": 0}, {"service": 99.5})
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["headline"]["heldout_success_after"] == 0.9
    assert summary["curve"][0] == {
        "step": 1,
        "success": 0.25,
        "reward": 0.25,
        "logprob_diff_max": 1e-5,
    }
    assert summary["settings"] == {"seed": 0}
    assert {"python", "torch", "trl"} <= summary["versions"].keys()
    assert summary["machine"]["cpus"] >= 1


def test_the_curve_is_an_image(tmp_path: Path) -> None:
    write_curve(tmp_path / "curve.png", CURVE, before=0.2, after=0.9, title="Demo")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
