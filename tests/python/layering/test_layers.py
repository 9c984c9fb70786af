"""The layers of the sources, read from includes and imports: nothing looks upwards."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CORE = ROOT / "core"

# What a folder of core/src may include besides itself and the public headers; new folders go here.
MAY_INCLUDE: dict[str, set[str]] = {
    "common": set(),
    "reduce": {"common"},
    "observability": {"common"},
    "transport": {"common", "reduce"},
    "rendezvous": {"common", "reduce", "transport"},
    "collectives": {"common", "reduce", "transport", "rendezvous", "cost", "sharding", "observability"},
    "fusion": {
        "common",
        "reduce",
        "transport",
        "rendezvous",
        "collectives",
        "cost",
        "sharding",
        "observability",
        "device",
    },
    "device": {"common"},
    # Pure functions over plain data.
    "cost": {"common"},
    "sharding": {"common"},
    "partition": {"common", "cost", "sharding"},
    "pipeline": {"common", "cost", "sharding"},
    "memory": {"common", "cost", "sharding"},
}
PURE = {"cost", "sharding", "partition", "pipeline", "memory"}
# What a pure function has no use for: threads, descriptors, the clock.
IMPURE_HEADERS = re.compile(
    r"(sys/.*|unistd\.h|fcntl\.h|poll\.h|netdb\.h|arpa/.*|netinet/.*|thread|mutex|atomic|condition_variable|future)"
)

# What a package may import besides itself and the standard library; the longest name that fits counts.
MAY_IMPORT: dict[str, set[str]] = {
    "smdp": {"numpy", "typer", "rich"},
    "smdp._dlpack": {
        "numpy",
        "ml_dtypes",
    },  # where bfloat16 or 8-bit floats are asked for
    "smdp._pickling": {"cloudpickle"},  # for what pickle refuses
    "smdp.cli.bench.peers": {"smdp", "numpy", "ml_dtypes", "torch", "mpi4py"},  # the libraries it measures
    "smdp.torch": {"smdp", "torch", "smdp_torch_autoload"},
    "smdp.torch.model_parallel.safetensors_files": {"smdp", "torch", "safetensors"},
    "smdp_torch_autoload": {"smdp", "torch"},
    "smdp.tensorflow": {"smdp", "numpy", "tensorflow"},
    "smdp.accelerate": {"smdp", "smdp.torch", "torch", "accelerate"},
    "smdp.transformers": {
        "smdp",
        "smdp.torch",
        "smdp.accelerate",
        "numpy",
        "torch",
        "accelerate",
        "transformers",
    },
    "smdp.lightning": {"smdp", "smdp.torch", "torch", "lightning"},
    "smdp.sagemaker": {"smdp"},
    "smdp.sagemaker.entry_script": {"smdp", "sagemaker_training"},
    "smdp.sagemaker.distributed_config": {"sagemaker"},
    "smdp.compat": {"smdp", "smdp_compat"},
    "smdp.compat.sagemaker": {"smdp", "numpy", "torch", "tensorflow", "mpi4py", "smdp_torch_autoload"},
    "smdp.compat.horovod": {"smdp", "torch", "tensorflow"},
    "smdp_compat": {"smdp", "smdp_torch_autoload", "torch"},
}
# Packages that one folder of MAY_IMPORT must not reach, although a longer name begins with the allowed one.
FRAMEWORKS = {"torch", "tensorflow", "transformers", "accelerate", "lightning", "jax"}
PYTHON_TREES = [ROOT / "core" / "python", *sorted(ROOT.glob("plugins/*/python"))]

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)


def cpp_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in {".h", ".cpp"})


def includes(path: Path) -> tuple[list[str], list[str]]:
    """Give what a file includes in quotes and in angle brackets."""
    found = INCLUDE.findall(path.read_text(encoding="utf-8"))
    return [quoted for quoted, _ in found if quoted], [angled for _, angled in found if angled]


def test_sources_are_found() -> None:
    assert cpp_files(CORE / "src"), "this test looks in the wrong place"
    assert list(python_files()), "this test looks in the wrong place"


@pytest.mark.parametrize("path", cpp_files(CORE / "src"), ids=lambda path: str(path.relative_to(CORE)))
def test_source_includes_own_and_lower_layers(path: Path) -> None:
    layer = path.relative_to(CORE / "src").parts[0]
    assert layer in MAY_INCLUDE, f"core/src/{layer} has no place in MAY_INCLUDE"
    quoted, angled = includes(path)
    for header in quoted:
        folder = header.split("/")[0] if "/" in header else "(no folder)"
        assert folder in {"smdp", layer} | MAY_INCLUDE[layer], f"{layer} must not include {header}"
    for header in angled:
        assert not header.startswith(("Python.h", "nanobind/")), f"core/src must not include {header}"
        if layer in PURE:
            assert not IMPURE_HEADERS.fullmatch(header), f"{layer} is pure and must not include {header}"


@pytest.mark.parametrize("path", cpp_files(CORE / "include"), ids=lambda path: path.name)
def test_public_header_includes_public_headers(path: Path) -> None:
    for header in includes(path)[0]:
        assert header.startswith("smdp/"), f"{path.name} is public and must not include {header}"


@pytest.mark.parametrize("path", cpp_files(CORE / "bindings"), ids=lambda path: path.name)
def test_binding_includes_public_headers(path: Path) -> None:
    own = {header.name for header in cpp_files(CORE / "bindings")}
    for header in includes(path)[0]:
        assert header.startswith("smdp/") or header in own, f"bindings must not include {header}"


def python_files() -> Iterator[tuple[str, Path]]:
    """Give every module's dotted name and file."""
    for tree in PYTHON_TREES:
        for path in sorted(tree.rglob("*.py")):
            parts = path.relative_to(tree).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(module: str, path: Path) -> Iterator[str]:
    """Give the dotted names that a file imports, wherever in it; not those for type checkers only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node.body.clear()  # ast.walk has not gone there yet
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
                source = ".".join([*package[: len(package) - node.level + 1], *filter(None, [source])])
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)


def rule(module: str) -> tuple[str, set[str]]:
    """Give the most special package in MAY_IMPORT that a module belongs to, and what it may import."""
    names = [name for name in MAY_IMPORT if module == name or module.startswith(name + ".")]
    assert names, f"{module} has no place in MAY_IMPORT"
    name = max(names, key=len)
    return name, MAY_IMPORT[name]


@pytest.mark.parametrize(
    ("module", "path"), list(python_files()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_module_imports_own_and_allowed_packages(module: str, path: Path) -> None:
    package, allowed = rule(module)
    for name in imports(module, path):
        top = name.split(".")[0]
        if top in sys.stdlib_module_names or top in allowed:
            continue
        assert top == package.split(".")[0], f"{module} must not import {name}"
        if package == "smdp" and name.startswith("smdp."):
            second = name.split(".")[1]
            assert second not in FRAMEWORKS, f"{module} is framework-free and must not import {name}"
