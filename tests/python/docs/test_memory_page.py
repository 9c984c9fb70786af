"""The page "Will it fit?" and the reference name every field."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from smdp import memory
from smdp.memory.families import FAMILIES
from smdp.partition import Tied, Trace, Unit

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "memory.md").read_text(encoding="utf-8")
REFERENCE = f"{memory.__doc__}{memory.estimate.__doc__}"


def test_every_field_is_named() -> None:
    settings = [name for name in dir(memory.Setting) if not name.startswith("_")]
    shapes = [name for kind in (memory.Layers, memory.Architecture) for name in dir(kind) if name[0] != "_"]
    kinds = [name for name in dir(memory.StageMemory) if not name.startswith("_")]
    of_traces = [field.name for kind in (Trace, Unit, Tied) for field in fields(kind)]
    assert len(settings) == 22
    names = {*settings, *shapes, *kinds, *of_traces, *FAMILIES, *memory.KINDS}
    assert sorted(name for name in names if f"`{name}`" not in PAGE + REFERENCE) == []
