"""Source files stay short enough to have one concern that a newcomer can name."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MOST_LINES = 450
GENERATED = {"core/python/smdp/_core.pyi"}
SUFFIXES = {".py", ".pyi", ".h", ".cpp", ".cu", ".c", ".cmake"}


def too_long(root: Path) -> list[str]:
    """Returns the files of core/ and plugins/ that have more lines than they may."""
    files = (path for tree in ("core", "plugins") for path in sorted((root / tree).rglob("*")))
    found = []
    for path in files:
        name = path.relative_to(root).as_posix()
        if path.suffix not in SUFFIXES or name in GENERATED or not path.is_file():
            continue
        lines = path.read_bytes().count(b"\n")
        if lines > MOST_LINES:
            found.append(f"{name} has {lines} lines; cut it by concern to at most {MOST_LINES}")
    return found


def test_no_file_is_too_long() -> None:
    assert too_long(ROOT) == []


def test_a_long_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "core" / "src").mkdir(parents=True)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "core" / "src" / "short.cpp").write_text("\n" * MOST_LINES)
    (tmp_path / "core" / "src" / "long.cpp").write_text("\n" * (MOST_LINES + 1))
    assert [line.split()[0] for line in too_long(tmp_path)] == ["core/src/long.cpp"]
