"""Every Python block of the documentation runs, and does what its page says."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted(p.name for p in (ROOT / "docs").glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: pathlib.Path) -> list[tuple[int, str]]:
    """Line number and text of every Python block; those opened with "python no-run" are left out."""
    text = page.read_text(encoding="utf-8")
    return [(text[: found.start(1)].count("\n") + 1, found[1]) for found in BLOCK.finditer(text)]


def run_page(page: pathlib.Path) -> dict:
    """Run the blocks of a page one after another in one namespace."""
    namespace: dict = {"__name__": "docs"}
    for line, text in blocks(page):
        # Blank lines put a failure at its line of the page.
        exec(compile("\n" * (line - 1) + text, str(page), "exec"), namespace)
    return namespace


@pytest.mark.parametrize(
    "name", [p for p in PAGES if BLOCK.search((ROOT / "docs" / p).read_text(encoding="utf-8"))]
)
def test_page(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(ROOT / "docs" / name)


def test_readme(tmp_path):
    """The README's program as a user runs it: in a process of its own, with four devices."""
    [(_, text)] = blocks(ROOT / "README.md")
    script = tmp_path / "readme.py"
    script.write_text(
        text + "\nassert len(run.mesh.devices.flat) == 4 and run.verdict.ok, run.report()\n", encoding="utf-8"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    environment["PYTHONSAFEPATH"] = "1"
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    assert "Nothing wrong found" in done.stdout and "cpu:3" in done.stdout
    assert (tmp_path / "run.nc").exists()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p}" for p in PAGES)])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    missing = [link for link in links if link and not (ROOT / page).parent.joinpath(link).exists()]
    assert not missing


NOTEBOOK = ROOT / "notebooks" / "01_multi_chain.ipynb"


def outputs(notebook, kind):
    """What the cells show of a MIME type, or as "text" what they print."""
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [o.text if kind == "text" and "text" in o else o.get("data", {}).get(kind, "") for o in shown]


def check_outputs(notebook):
    """No error, no noise; the bars at their end, the sharding grid, pictures and plots are there."""
    kinds = [(o.output_type, o.get("name")) for cell in notebook.cells for o in cell.get("outputs", [])]
    assert ("error", None) not in kinds and ("stream", "stderr") not in kinds
    html = outputs(notebook, "text/html")
    bars = [h for h in html if 'role="progressbar"' in h]
    assert len(bars) == 2  # one element a run, whatever the number of updates
    assert all("1,000 of 1,000" in bar and "8 chains on 4 devices" in bar and "found" in bar for bar in bars)
    assert sum("chainmesh-sharding" in h and "cpu:3" in h for h in html) == 2
    assert sum(bool(picture) for picture in outputs(notebook, "image/png")) >= 5


def test_stored_notebook():
    """As committed: executed in order, nothing of the machine that ran it."""
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    check_outputs(notebook)
    words = outputs(notebook, "text") + outputs(notebook, "text/html") + outputs(notebook, "text/plain")
    for path in (r"(?<!\w)/(home|root|tmp|usr|opt|var|mnt|Users)/", r"[A-Z]:\\", "site-packages"):
        assert not [w for w in words if re.search(path, w)]
    for before, cell in zip(notebook.cells, notebook.cells[1:], strict=False):
        assert cell.cell_type != "code" or before.cell_type == "markdown"  # prose before each cell
    assert NOTEBOOK.stat().st_size < 1_000_000


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of nbclient and the event loop it runs
def test_notebook_runs(tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    for name in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where).execute()
    check_outputs(notebook)
