"""`import smdp` needs no framework: it works where all of them are missing."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BLOCKED = ("torch", "tensorflow", "transformers", "accelerate", "keras", "jax")

PROGRAM = f"""
import sys
for name in {BLOCKED}:
    sys.modules[name] = None  # importing it raises ModuleNotFoundError
import smdp, smdp._core, smdp.cli, smdp.config, smdp.environments
import smdp.memory, smdp.partition, smdp.placement, smdp.sharding
assert all(getattr(smdp, name) is not None for name in smdp.__all__)
assert not any(name.split(".")[0] in {BLOCKED} and module is not None for name, module in sys.modules.items())
print(smdp.__version__)
"""


def test_smdp_without_any_framework() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == metadata.version("smdp")


SUBINTERPRETER = """
# Not isolated ones, which Python 3.12 and newer keep from most modules.
try:
    import _interpreters as interpreters
    other = interpreters.create("legacy")
except ImportError:
    import _xxsubinterpreters as interpreters
    other = interpreters.create(isolated=False)
import numpy, smdp
group = smdp.init()
program = '''
try:
    import smdp._core
except ImportError as error:
    assert "works in the main interpreter only" in str(error), error
else:
    raise AssertionError
'''
failure = interpreters.run_string(other, program)  # raises it before Python 3.13
assert failure is None, failure
interpreters.destroy(other)
values = numpy.ones(2)
group.all_reduce(values)
try:
    group.all_reduce(values, "sum")
except ValueError:
    smdp.shutdown()
"""


def test_subinterpreter_is_refused_and_the_main_one_goes_on() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SUBINTERPRETER], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("framework", "plugin", "extra"),
    [
        ("torch", "torch", "torch"),
        ("tensorflow", "tensorflow", "tensorflow"),
        ("transformers", "transformers", "transformers"),
        ("accelerate", "accelerate", "transformers"),
        ("lightning", "lightning", "lightning"),
    ],
)
def test_plugin_says_what_to_install_where_its_framework_is_missing(
    framework: str, plugin: str, extra: str
) -> None:
    blocked = f"for name in ('{framework}', 'accelerate'): sys.modules[name] = None"
    program = f"import sys\n{blocked}\nimport smdp.{plugin}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert f'pip install "smdp[{extra}]"' in done.stderr.splitlines()[-1]


def test_stub_of_the_module_is_the_one_in_the_tree() -> None:
    """mypy reads the stub in the tree, users get the built one: the surface does not change unseen."""
    built = (resources.files("smdp") / "_core.pyi").read_text(encoding="utf-8")
    kept = ROOT / "core" / "python" / "smdp" / "_core.pyi"
    assert kept.read_text(encoding="utf-8") == built, f"if the change is meant, copy the built stub to {kept}"


def test_package_is_typed() -> None:
    assert (resources.files("smdp") / "py.typed").is_file()
