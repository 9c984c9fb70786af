"""Runs all cells of a notebook and writes it with their outputs: `python run_notebook.py NOTEBOOK OUTPUT`.

With twice the same file it makes the outputs that are committed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbclient
import nbformat


def main(source: Path, target: Path) -> None:
    notebook = nbformat.read(source, as_version=4)
    where = {"metadata": {"path": str(source.parent)}}
    client = nbclient.NotebookClient(notebook, timeout=240, resources=where, coalesce_streams=True)
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day
    nbformat.write(notebook, target)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
