import json
from pathlib import Path

from recipes.demo.report import Headline, Step, write_curve, write_summary

CURVE = [Step(step, step / 4, step / 4, 1e-5) for step in range(1, 5)]
HEADLINE = Headline(0.2, 0.9, 1e-5, 20.0, 1.5, 90.0, 800.0)


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
