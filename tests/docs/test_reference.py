"""The built site has a place for every public name and every C++ class."""

from __future__ import annotations

import ast
import html
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pages import DOCS, ROOT

pytest.importorskip("sphinx", reason="needs the documentation's tools: pip install --group docs")
pytest.importorskip("griffe", reason="needs the documentation's tools: pip install --group docs")
sys.path.insert(0, str(DOCS))
from directives import python_api

BUILT = DOCS / "_build" / "html"
# Programs, and names that have pages of their own: horovod.md, sagemaker.md, sagemaker_model_parallel.md.
NOT_IN_THE_REFERENCE = re.compile(
    r"smdp\.(cli|compat\.(horovod|sagemaker)|_\w+"
    r"|torch\.(plugin_support|model_parallel\.(nn|fp16|optimizers|utils|training\.patches"
    r"|checkpoints\.sharded_data_parallel_checkpoint)))\b"
)


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    """Build what is not up to date; takes seconds after `tox -e docs` has built."""
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", str(DOCS), str(BUILT)]
    subprocess.run(command, check=True, timeout=300)


@pytest.fixture(scope="session")
def inventory(built: None) -> dict[str, Any]:
    from sphinx.util.inventory import InventoryFile

    loaded: Any = InventoryFile.loads((BUILT / "objects.inv").read_bytes(), uri="")
    return dict(loaded.data if hasattr(loaded, "data") else loaded)


def python_names(inventory: dict[str, Any]) -> set[str]:
    return {name for kind, found in inventory.items() if kind.startswith("py:") for name in found}


def modules_with_all() -> dict[str, list[str]]:
    """Find every module of the wheel that has an `__all__`, whatever the reference says."""
    found = {}
    for tree in (ROOT / "core" / "python", *sorted(ROOT.glob("plugins/*/python"))):
        for file in sorted(tree.rglob("*.py")):
            parts = file.relative_to(tree).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                    is_list = isinstance(node.value, ast.List) and name != "smdp"
                    found[name] = ast.literal_eval(node.value) if is_list else python_api.public_names("smdp")
    return found


@pytest.mark.timeout(400)
@pytest.mark.parametrize("module", python_api.DOCUMENTED)
def test_every_public_name_has_a_place(module: str, inventory: dict[str, Any]) -> None:
    names = {f"{module}.{name}" for name in python_api.public_names(module)}
    assert names
    assert names - python_names(inventory) == set()


def test_every_module_with_public_names_is_in_the_reference() -> None:
    internal = {
        "smdp.torch.model_parallel.training.amp": "smdp.torch.model_parallel.amp",
        "smdp.torch.checkpoints.checkpoint": "smdp.torch.model_parallel.checkpoint",
    }
    modules = {internal.get(name, name) for name in modules_with_all() if name.startswith("smdp")}
    assert len(modules) > 15
    left = {name for name in modules if not NOT_IN_THE_REFERENCE.match(name)} - set(python_api.DOCUMENTED)
    assert left == set()


def test_names_are_those_that_the_sources_list() -> None:
    """What the reference reads from the sources is what Python sees."""
    import importlib

    for name in (
        "smdp.memory",
        "smdp.partition",
        "smdp.pipeline",
        "smdp.plan",
        "smdp.placement",
        "smdp.sharding",
    ):
        module = importlib.import_module(name)
        assert sorted(python_api.public_names(name)) == sorted(module.__all__)
        assert [each for each in module.__all__ if not hasattr(module, each)] == []


def test_a_misspelt_name_has_none(inventory: dict[str, Any]) -> None:
    assert "smdp.torch.pipeline" in python_names(inventory)
    assert "smdp.torch.pipelin" not in python_names(inventory)
    with pytest.raises(KeyError):
        python_api.find("smdp.torch.pipelin")


def test_every_class_of_the_headers_has_a_place(inventory: dict[str, Any]) -> None:
    if shutil.which("doxygen") is None:
        pytest.skip("needs doxygen")
    headers = sorted((ROOT / "core" / "include" / "smdp").glob("*.h"))
    page = (DOCS / "reference" / "cpp.md").read_text(encoding="utf-8")
    assert [one.name for one in headers if one.name not in page] == ["export.h"]
    names = {
        name
        for header in headers
        for name in re.findall(
            r"(?m)^(?:class|struct) (?:SMDP_API )?(\w+)(?: final)?(?: :[^:].*)? \{",
            header.read_text(encoding="utf-8"),
        )
    }
    there = {name.rpartition("::")[2] for name in inventory["cpp:class"]} | {
        name.rpartition("::")[2] for name in inventory.get("cpp:struct", {})
    }
    assert "GroupOptions" in names and len(names) > 30
    assert names - there == set()


def test_comments_of_headers_are_shown() -> None:
    if shutil.which("doxygen") is None:
        pytest.skip("needs doxygen")
    page = html.unescape(
        re.sub(r"<[^>]+>", "", (BUILT / "reference" / "cpp.html").read_text(encoding="utf-8"))
    )
    page = " ".join(page.split())
    assert "Blocks until all size ranks have made a group with the same name and store." in page  # above
    assert "two float16" in page  # behind
    assert "A set of ranks that communicate: the world or a part of it." in page  # the file's first


def test_links_within_the_site_lead_somewhere() -> None:
    broken = []
    ids: dict[Path, set[str]] = {}
    for page in sorted(BUILT.rglob("*.html")):
        for link in re.findall(r'href="([^"]+)"', page.read_text(encoding="utf-8")):
            path, _, anchor = html.unescape(link).partition("#")
            path = path.partition("?")[0]
            if re.match(r"\w+:|//", path):
                continue
            target = (page.parent / path).resolve() if path else page
            if not target.exists():
                broken.append(f"{page.name}: {link}")
            elif anchor and target.suffix == ".html":
                if target not in ids:
                    ids[target] = set(re.findall(r'\bid="([^"]+)"', target.read_text(encoding="utf-8")))
                if html.escape(anchor) not in ids[target] and anchor not in ids[target]:
                    broken.append(f"{page.name}: {link}")
    assert broken == []


def test_readme_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"(?m)^([\w/]+)$", index))
    pages = {
        str(page.relative_to(DOCS).with_suffix(""))
        for page in [*DOCS.glob("*.md"), *DOCS.glob("reference/*.md")]
    }
    assert pages - listed == {"index"}
