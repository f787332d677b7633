"""The notebook in the docs runs, and the policy in it learns."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.processes

NOTEBOOK = Path(__file__).parents[1] / "docs" / "trl.ipynb"


def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=200, resources=resources).execute()
    cells = {cell["source"]: cell for cell in notebook.cells if cell["cell_type"] == "code"}
    (gap,) = (cell for source, cell in cells.items() if "sampling_logp_difference" in source)
    assert gap["outputs"][0]["data"]["text/plain"] == "True"
    assert "leters" in str([cell["outputs"] for cell in cells.values()])
