"""The command line's surface, and how quickly it answers."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest
import typer

from smdp import cli

# Options are a promise: changing one means changing it here and in the changelog.
FROZEN = {
    "run": {
        "command",
        "-n",
        "-np",
        "--nproc-per-node",
        "--nproc_per_node",
        "-m",
        "--module",
        "--master-port",
        "--master_port",
        "--stop-timeout",
        "--grace",
        "--bind-to",
        "--compat",
        "--dry-run",
        "--nnodes",  # hidden, with --hosts and -H: they get an answer
        "--hosts",
        "-H",
    },
    "env": {"--check", "--json"},
    "bench": {
        "operation",
        "-n",
        "--nproc-per-node",
        "-b",
        "--begin",
        "-e",
        "--end",
        "-f",
        "--factor",
        "--dtype",
        "--against",
        "--iters",
        "--json",
        "--compression",
        "--gradients",
        "--forward-ms",
        "--backward-ms",
        "--in-forward",
    },
    "simulate": {
        "what",
        "--hosts",
        "--ranks-per-host",
        "--link",
        "--gradients",
        "--forward-ms",
        "--backward-ms",
        "--latency-us",
        "--compression",
        "--json",
    },
    "plan": {
        "model_config",
        "--batch",
        "--sequence",
        "--hosts",
        "--ranks-per-host",
        "--device-memory",
        "--link",
        "--interconnect",
        "--tflops",
        "--efficiency",
        "--margin",
        "--precision",
        "--flash-attention",
        "--device",
        "--cores-per-host",
        "--gflops",
        "--gflops-16bit",
        "--memory-bandwidth",
        "--layer-overhead-us",
        "--latency-us",
        "--disk-bandwidth",
        "--emit",
        "--offload",
        "--most",
        "--explain",
        "--json",
        "--trace",
    },
    "schedule list": set(),
    "schedule show": {
        "name",
        "--stages",
        "--microbatches",
        "--virtual-stages",
        "--active-microbatches",
        "--forward",
        "--backward-input",
        "--backward-weight",
        "--hop",
        "--memory-cap",
        "--width",
        "--json",
        "-o",
        "--output",
        "--trace",
    },
    "trace merge": {"directory", "-o", "--output"},
    "trace report": {"directory", "--json"},
}


def test_the_surface_is_frozen() -> None:
    root = typer.main.get_command(cli.app)
    commands = {}
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        below = getattr(command, "commands", None)
        commands |= {name: command} if below is None else {f"{name} {sub}": c for sub, c in below.items()}
    found = {
        name: {word for parameter in command.params for word in parameter.opts}
        for name, command in commands.items()
    }
    assert found == FROZEN


@pytest.mark.timeout(60)
def test_help_is_quick_and_imports_little() -> None:
    code = (
        "import sys\n"
        "from smdp.cli import main\n"
        "sys.argv = ['smdp', '--help']\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        "print([name for name in ('numpy', 'smdp._core', 'rich', 'torch', 'json') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "run" in done.stdout
    assert "env" in done.stdout
    assert "bench" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
    # Processor time, and the best of several: the machine may be busy with something else.
    best = 1e9
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "smdp", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert best < 0.3


@pytest.mark.parametrize("option", ["--nnodes", "--hosts", "-H"])
def test_several_machines_are_another_launcher(option: str) -> None:
    command = [sys.executable, "-m", "smdp", "run", option, "2", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "smdp run starts ranks on this machine only" in done.stderr and "torchrun" in done.stderr


@pytest.mark.parametrize(
    ("words", "answer"), [("smdp schedule show zb", "zb_1p\nzb_2p\nzb_v"), ("smdp bench all_r", "all_reduce")]
)
def test_completion(words: str, answer: str) -> None:
    variables = {
        **os.environ,
        "_SMDP_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    code = "from smdp.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True)
    assert done.stdout.strip() == answer, done.stderr


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--version"], 0), ([], 2), (["fly"], 2), (["run"], 2), (["run", "-n", "0", "true"], 2)],
)
def test_exit_codes(arguments: list[str], code: int) -> None:
    done = subprocess.run([sys.executable, "-m", "smdp", *arguments], capture_output=True, text=True)
    assert done.returncode == code, done.stderr


@pytest.mark.timeout(60)
@pytest.mark.parametrize("arguments", ["env", "env --json", "schedule --help", "run --dry-run bash"])
def test_output_that_cannot_be_written(arguments: str) -> None:
    command = f"{sys.executable} -m smdp {arguments} >/dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 74
    assert done.stderr == "smdp: cannot write the output: [Errno 28] No space left on device\n"
