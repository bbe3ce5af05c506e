"""Executes the notebooks and stores them with their outputs: `python notebooks/execute.py` (on a quiet machine)."""

import pathlib
import tempfile

import nbformat
from nbclient import NotebookClient


def main() -> None:
    """Run every notebook of this folder; keep nothing of the machine that ran it."""
    for path in sorted(pathlib.Path(__file__).parent.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        about = {"kernelspec": notebook.metadata.kernelspec, "language_info": {"name": "python"}}
        with tempfile.TemporaryDirectory() as folder:
            where = {"metadata": {"path": folder}}
            NotebookClient(notebook, timeout=600, record_timing=False, resources=where).execute()
        notebook.metadata = nbformat.from_dict(about)
        nbformat.write(notebook, path)
        print(f"executed {path.name}")


if __name__ == "__main__":
    main()
