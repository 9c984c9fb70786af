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

# What a folder of core/src may include besides itself and the public headers; new folders go here. The
# longest folder that fits counts, of who includes and of what is included: who may include "transport" may
# not include "transport/tcp".
MAY_INCLUDE: dict[str, set[str]] = {
    "common": set(),
    "reduce": {"common"},
    "observability": {"common"},
    "transport": {"common", "reduce", "transport/shm", "transport/tcp"},
    "transport/shm": {"common", "transport", "transport/tcp"},
    "transport/tcp": {"common", "transport"},
    "rendezvous": {"common", "reduce", "transport", "transport/shm", "transport/tcp"},
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

# What a package may import besides itself and the standard library. The longest name that fits counts, of who
# imports and of what is imported: who may import "smdp" may not import "smdp.torch".
MAY_IMPORT: dict[str, set[str]] = {
    "smdp": {"smdp._dlpack", "smdp._pickling", "smdp._run", "smdp.cli.bench.peers", "numpy", "typer", "rich"},
    "smdp._dlpack": {"smdp", "numpy", "ml_dtypes"},  # where bfloat16 or 8-bit floats are asked for
    "smdp._pickling": {"smdp", "cloudpickle"},  # for what pickle refuses
    "smdp._run": {"smdp", "smdp._pickling", "cloudpickle"},  # for functions of a notebook
    "smdp.cli.bench.peers": {"smdp", "numpy", "ml_dtypes", "torch", "mpi4py"},  # the libraries it measures
    "smdp_torch_autoload": {
        "smdp",
        "smdp.torch.process_group",
        "smdp.torch.rendezvous",
        "smdp.accelerate",
        "torch",
    },
    "smdp.tensorflow": {"smdp", "smdp._pickling", "numpy", "tensorflow"},
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
    "smdp.sagemaker": {"smdp", "smdp.sagemaker.entry_script", "smdp.sagemaker.distributed_config"},
    "smdp.sagemaker.entry_script": {"smdp", "smdp.sagemaker", "sagemaker_training"},
    "smdp.sagemaker.distributed_config": {"smdp.sagemaker", "sagemaker"},
    "smdp.compat": {"smdp", "smdp_compat"},
    "smdp.compat.sagemaker": {
        "smdp",
        "smdp.compat",
        "smdp.torch",
        "smdp.torch.model_parallel",
        "smdp.torch.model_parallel.nn",
        "smdp.tensorflow",
        "smdp.transformers",
        "smdp_compat",
        "smdp_torch_autoload",
        "numpy",
        "torch",
        "tensorflow",
        "mpi4py",
    },
    "smdp.compat.horovod": {
        "smdp",
        "smdp._pickling",
        "smdp.compat",
        "smdp.compat.sagemaker",
        "smdp.torch",
        "smdp.tensorflow",
        "torch",
        "tensorflow",
    },
    "smdp_compat": {
        "smdp",
        "smdp.compat",
        "smdp.torch",
        "smdp.torch.model_parallel",
        "smdp_torch_autoload",
        "torch",
    },
}
# The rooms of smdp.torch, lowest first, and which other rooms each may import. All may import smdp and torch.
_BELOW_ENGINE = {
    "pipelining.tensors",
    "pipelining.units",
    "pipelining.ghosts",
    "pipelining.transfers",
    "pipelining.gradients",
    "pipelining.interpreter",
}
ROOMS: dict[str, set[str]] = {
    "rendezvous": set(),
    "process_group": {"rendezvous"},
    "mesh": {"process_group"},
    "initialization": {"mesh", "process_group"},
    "preemption": set(),
    "optimizers": set(),
    "data_parallel": {"mesh", "process_group"},
    "forward_waits": set(),
    "offload": {"forward_waits", "mesh"},
    "step_in_forward": {"data_parallel", "forward_waits", "optimizers", "process_group"},
    "tensor_parallelism": {"initialization", "mesh", "process_group"},
    "sharding": {"data_parallel", "forward_waits", "mesh", "offload", "optimizers", "process_group"},
    "sharded_parameters": {"forward_waits", "initialization", "mesh", "offload", "process_group", "sharding"},
    "pipelining.tensors": {"mesh", "process_group"},
    "pipelining.units": {"pipelining.tensors", "mesh"},
    "recompute": {"mesh", "pipelining.units", "tensor_parallelism"},
    "pipelining.ghosts": {"pipelining.tensors", "pipelining.units"},
    "pipelining.analysis": {"pipelining.tensors", "pipelining.units", "pipelining.ghosts", "recompute"},
    "pipelining.transfers": {"pipelining.tensors", "process_group"},
    "pipelining.gradients": {"pipelining.units", "data_parallel", "mesh", "process_group", "recompute"},
    "pipelining.state_dicts": {"pipelining.tensors", "pipelining.units"},
    "pipelining.interpreter": {
        "pipelining.tensors",
        "pipelining.units",
        "pipelining.ghosts",
        "pipelining.transfers",
        "recompute",
    },
    "pipelining.engine": _BELOW_ENGINE | {"mesh", "offload", "process_group"},
    # The one place that wires.
    "pipelining.pipelined": _BELOW_ENGINE
    | {"pipelining.engine", "pipelining.analysis", "pipelining.state_dicts"}
    | {"initialization", "mesh", "offload", "process_group", "recompute", "tensor_parallelism"},
    "precision": {"pipelining.pipelined", "pipelining.tensors", "sharded_parameters", "sharding"}
    | {"initialization", "mesh", "optimizers"},
    "checkpoints": {"pipelining.pipelined", "pipelining.state_dicts", "precision"}
    | {"sharded_parameters", "sharding"}
    | {"optimizers", "mesh"},
    # SMP's API.
    "model_parallel.job": {"pipelining.transfers", "mesh", "tensor_parallelism"},
    "model_parallel.nn": {"model_parallel.job", "tensor_parallelism", "mesh", "initialization"},
    "model_parallel.tensor_parallelism": {
        "model_parallel.job",
        "model_parallel.nn",
        "tensor_parallelism",
        "mesh",
        "initialization",
    },
    "model_parallel.modules": _BELOW_ENGINE
    | {"model_parallel.job", "pipelining.engine", "pipelining.pipelined", "pipelining.state_dicts"}
    | {"model_parallel.nn", "model_parallel.tensor_parallelism"}
    | {"data_parallel", "initialization", "mesh", "offload", "precision", "process_group"}
    | {"sharded_parameters", "sharding", "tensor_parallelism"},
    "model_parallel.training": _BELOW_ENGINE
    | {"model_parallel.job", "model_parallel.modules", "pipelining.engine", "pipelining.pipelined"}
    | {"model_parallel.tensor_parallelism"}
    | {"precision", "recompute", "sharded_parameters", "sharding", "mesh", "optimizers"},
    "model_parallel.checkpoints": {"model_parallel.job", "model_parallel.training", "checkpoints", "mesh"}
    | {"pipelining.state_dicts", "precision", "sharding"},
}
MAY_IMPORT |= {
    f"smdp.torch.{room}": {"smdp", "torch"} | {f"smdp.torch.{other}" for other in others}
    for room, others in ROOMS.items()
}
_ALL_ROOMS = {f"smdp.torch.{room}" for room in ROOMS}
MAY_IMPORT["smdp.torch.process_group"].add("smdp_torch_autoload")
for room in ("checkpoints", "model_parallel.checkpoints"):
    MAY_IMPORT[f"smdp.torch.{room}"].add("smdp.torch.checkpoints.safetensors_files")
MAY_IMPORT["smdp.torch.checkpoints.safetensors_files"] = {
    "safetensors",
    "smdp.torch.checkpoints",
    *MAY_IMPORT["smdp.torch.checkpoints"],
}
# The faces.
MAY_IMPORT["smdp.torch.model_parallel"] = {"smdp", "torch", *_ALL_ROOMS}
MAY_IMPORT["smdp.torch"] = {"smdp", "torch", *_ALL_ROOMS}
PYTHON_TREES = [ROOT / "core" / "python", *sorted(ROOT.glob("plugins/*/python"))]

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)


def cpp_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in {".h", ".cpp"})


def includes(source: str) -> tuple[list[str], list[str]]:
    """Returns what a file includes in quotes and in angle brackets."""
    found = INCLUDE.findall(source)
    return [quoted for quoted, _ in found if quoted], [angled for _, angled in found if angled]


def layer_of(path: str) -> str:
    """Returns the longest folder in MAY_INCLUDE that a file of core/src lies in; else its first folder."""
    known = [layer for layer in MAY_INCLUDE if path.startswith(layer + "/")]
    return max(known, key=len) if known else path.rpartition("/")[0].split("/")[0]


def refused_includes(layer: str, source: str) -> list[str]:
    """Returns what a file of a folder of core/src includes and may not."""
    quoted, angled = includes(source)
    folders = {"smdp", layer} | MAY_INCLUDE[layer]
    upwards = [header for header in quoted if layer_of(header) not in folders]
    python = [header for header in angled if header.startswith(("Python.h", "nanobind/"))]
    impure = [header for header in angled if layer in PURE and IMPURE_HEADERS.fullmatch(header)]
    return upwards + python + impure


def test_sources_are_found() -> None:
    assert cpp_files(CORE / "src"), "this test looks in the wrong place"
    assert list(python_files()), "this test looks in the wrong place"


@pytest.mark.parametrize("path", cpp_files(CORE / "src"), ids=lambda path: str(path.relative_to(CORE)))
def test_source_includes_own_and_lower_layers(path: Path) -> None:
    layer = layer_of(path.relative_to(CORE / "src").as_posix())
    assert layer in MAY_INCLUDE, f"core/src/{layer} has no place in MAY_INCLUDE"
    assert not refused_includes(layer, path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("layer", "header"),
    [
        ("transport", '"collectives/engine/engine.h"'),
        ("collectives", '"transport/shm/segment.h"'),
        ("collectives", '"transport/tcp/tcp_link.h"'),
        ("transport/tcp", '"transport/shm/segment.h"'),
        ("common", '"error.h"'),
        ("fusion", "<nanobind/nanobind.h>"),
        ("cost", "<thread>"),
    ],
)
def test_forbidden_include_is_refused(layer: str, header: str) -> None:
    source = f"#include <vector>\n#  include {header}\n"
    assert refused_includes(layer, source) == [header.strip('"<>')]


@pytest.mark.parametrize("path", cpp_files(CORE / "include"), ids=lambda path: path.name)
def test_public_header_includes_public_headers(path: Path) -> None:
    for header in includes(path.read_text(encoding="utf-8"))[0]:
        assert header.startswith("smdp/"), f"{path.name} is public and must not include {header}"
        is_internal = header.startswith("smdp/internal/")  # which the wheel does not contain
        assert path.parent.name == "internal" or not is_internal, f"{path.name} must not include {header}"


@pytest.mark.parametrize("path", cpp_files(CORE / "bindings"), ids=lambda path: path.name)
def test_binding_includes_public_headers(path: Path) -> None:
    own = {header.name for header in cpp_files(CORE / "bindings")}
    for header in includes(path.read_text(encoding="utf-8"))[0]:
        assert header.startswith("smdp/") or header in own, f"bindings must not include {header}"


def python_files() -> Iterator[tuple[str, Path]]:
    """Returns every module's dotted name and file."""
    for tree in PYTHON_TREES:
        for path in sorted(tree.rglob("*.py")):
            parts = path.relative_to(tree).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(module: str, source: str, *, is_package: bool = False) -> Iterator[str]:
    """Returns the dotted names that a file imports, wherever in it, for type checkers as well."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                origin = ".".join([*package[: len(package) - node.level + 1], *filter(None, [origin])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def package_of(name: str) -> str:
    """Returns the longest package in MAY_IMPORT that a name belongs to; another library's first word."""
    known = [package for package in MAY_IMPORT if name == package or name.startswith(package + ".")]
    return max(known, key=len) if known else name.split(".")[0]


def refused(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """Returns what a module imports and may not."""
    package = package_of(module)
    allowed = MAY_IMPORT[package] | {package} | set(sys.stdlib_module_names)
    names = imports(module, source, is_package=is_package)
    return [name for name in names if package_of(name) not in allowed]


MODULES = dict(python_files())


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_own_and_allowed_packages(module: str) -> None:
    path = MODULES[module]
    assert package_of(module) in MAY_IMPORT, f"{module} has no place in MAY_IMPORT"
    assert not refused(module, path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py")


@pytest.mark.parametrize(
    ("module", "source", "name"),
    [
        (
            "smdp.torch.mesh.parallel_mesh",
            "from smdp.transformers import trainer",
            "smdp.transformers.trainer",
        ),
        ("smdp.group", "def late():\n    import smdp.compat", "smdp.compat"),
        (
            "smdp.lightning.strategy",
            "from smdp.torch.mesh import parallel_mesh",
            "smdp.torch.mesh.parallel_mesh",
        ),
        (
            "smdp.torch.pipelining.ghosts.ghosts",
            "if TYPE_CHECKING:\n    from smdp.torch.mesh.parallel_mesh import ParallelMesh",
            "smdp.torch.mesh.parallel_mesh.ParallelMesh",
        ),
        ("smdp.tensorflow.tape", "import torch", "torch"),
        ("smdp.config", "import torch.distributed as dist", "torch.distributed"),
    ],
)
def test_forbidden_import_is_refused(module: str, source: str, name: str) -> None:
    assert refused(module, "from __future__ import annotations\nimport os\n" + source) == [name]


def test_no_modules_import_each_other() -> None:
    """Neither at their top nor in functions nor for annotations."""
    graph: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        is_package = path.name == "__init__.py"
        names = set(imports(module, path.read_text(encoding="utf-8"), is_package=is_package))
        names = {name for name in names if not name.startswith("smdp._core")}  # compiled
        modules = {name if name in MODULES else name.rpartition(".")[0] for name in names}
        graph[module] = {name for name in modules if name in MODULES and name != module}
    assert circle_in(graph) == []
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """Returns the nodes that are left when those on no circle are taken away."""
    left = {node: set(others) for node, others in graph.items()}
    while True:
        wanted = set().union(*left.values())
        ends = {node for node, others in left.items() if not others & left.keys() or node not in wanted}
        if not ends:
            return sorted(left)
        for node in ends:
            del left[node]
        for others in left.values():
            others -= ends
