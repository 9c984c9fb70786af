"""How smdp makes itself known to torch, in every import order, and how little others notice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_WORLD = "dist.init_process_group({backend!r}, store=dist.HashStore(), rank=0, world_size=1)\n"
_USE = "t = torch.ones(2); dist.all_reduce(t); dist.destroy_process_group(); print('fine')\n"


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize(
    "imports",
    [
        "import torch",
        "import smdp.torch",
        pytest.param("import torch, smdp.torch", marks=pytest.mark.slow),
        pytest.param("import smdp, smdp.torch, torch", marks=pytest.mark.slow),
        "from smdp import torch as plugin",
        pytest.param("import torch.distributed", marks=pytest.mark.slow),
        pytest.param("import smdp_torch_autoload as autoload; autoload.register()", marks=pytest.mark.slow),
        "import torch; import importlib, smdp.torch; smdp.torch.register(); importlib.reload(smdp.torch)",
    ],
)
def test_import_orders(imports: str) -> None:
    code = f"{imports}\nimport torch, torch.distributed as dist\n" + _WORLD.format(backend="smdp") + _USE
    result = python(code)
    assert result.returncode == 0, result.stderr
    assert "fine" in result.stdout
    assert "Warning" not in result.stderr, result.stderr


def test_several_checks_in_one_process() -> None:
    result = python(_CHECKS)
    assert result.returncode == 0, result.stderr
    assert "all passed" in result.stdout


_CHECKS = """
import sys
import torch, torch.distributed as dist
assert "smdp" not in sys.modules and "smdp._core" not in sys.modules, "autoload has loaded smdp"
assert "SMDP" in dist.Backend._plugins
needs_hiding = torch.__version__.startswith("2.13")
assert ("SMDP" not in list(dist.Backend._plugins)) == needs_hiding
assert dist.Backend.default_device_backend_map["cpu"] == "gloo"
assert dist.Backend.default_device_backend_map["cuda"] == "nccl"

def init(backend):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return dist.group.WORLD

# Somebody else's group: has its default backend, so that sequence numbers work.
group = init("cpu:gloo")
dist.all_reduce(torch.ones(2))
if needs_hiding:  # gone from 2.15
    group._set_sequence_number_for_group()
group._get_sequence_number_for_group()
assert "smdp" not in sys.modules
dist.destroy_process_group()

group = init(None)
assert group.name() == "gloo"
dist.destroy_process_group()

for backend in ("smdp", "SMDP", "cpu:smdp", "cpu:smdp,cuda:smdp"):
    group = init(backend)
    assert type(group).__name__ == "ProcessGroupSmdp", group
    assert group.name() == "smdp" and group._get_backend_name() == "smdp"
    assert torch.device("cpu") in group._device_types
    assert group.rank() == 0 and group.size() == 1
    dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()

for backend in ("cpu:smdp,cuda:nccl", "cpu:smdp,cuda:gloo", "cpu:gloo,cuda:smdp"):
    try:
        init(backend)
    except ValueError as error:
        text = str(error)
        assert "new_group" in text and backend in text, text
    else:
        raise AssertionError(backend)

try:
    dist.init_process_group("smdp", store=dist.HashStore(), rank=0, world_size=1, pg_options=object())
except ValueError as error:
    assert "pg_options" in str(error), error
else:
    raise AssertionError("pg_options")

# Somebody else's plugin can be registered beside smdp and is seen.
dist.Backend.register_backend("other", lambda *args: None, devices=["cpu"])
names = list(dist.Backend._plugins.keys())
assert "OTHER" in names and ("SMDP" in names) != needs_hiding, names
print("all passed")
"""


def test_autoload_can_be_switched_off() -> None:
    code = "import torch.distributed as d; print('SMDP' in d.Backend._plugins)"
    assert python(code, SMDP_DISABLE_AUTOLOAD="1").stdout.strip() == "False"
    assert python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").stdout.strip() == "False"
    explicit = "import smdp.torch, torch.distributed as d; print('SMDP' in d.Backend._plugins)"
    assert python(explicit, SMDP_DISABLE_AUTOLOAD="1").stdout.strip() == "True"


def test_autoload_never_breaks_import_torch() -> None:
    result = python("""
import sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "smdp":
            raise RuntimeError("broken installation")
sys.meta_path.insert(0, Broken())
import torch
import torch.distributed as dist
dist.Backend.register_backend = None
dist.Backend._plugins = {}
import smdp_torch_autoload, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    smdp_torch_autoload.register()
assert len(caught) == 1 and "smdp" in str(caught[0].message), caught
print("fine")
""")
    assert result.stdout.strip() == "fine", result.stderr


def test_without_torch_the_error_names_the_extra() -> None:
    result = python("""
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, NoTorch())
import smdp
try:
    import smdp.torch
except ImportError as error:
    assert 'pip install "smdp[torch]"' in str(error), error
    print("fine")
""")
    assert result.stdout.strip() == "fine", result.stderr


def test_an_untried_torch_warns_once() -> None:
    result = python("""
import warnings
import torch
torch.__version__ = torch.torch_version.TorchVersion("2.99.1")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import smdp.torch
    import smdp.torch
assert len([w for w in caught if "2.99" in str(w.message)]) == 1, caught
print("fine")
""")
    assert result.stdout.strip() == "fine", result.stderr


def test_entry_point_module_imports_nothing() -> None:
    import smdp_torch_autoload

    path = Path(smdp_torch_autoload.__file__).parent.parent
    code = (
        f"import sys; sys.path.insert(0, {str(path)!r}); import smdp_torch_autoload; "
        "print(sorted({'torch', 'smdp', 'numpy'} & set(sys.modules)))"
    )
    assert python(code).stdout.strip() == "[]"
