"""The name of rank 0's host: unknown, late, here or elsewhere."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

from smdp._errors import ConfigError
from smdp.environments import hydra
from smdp.environments.master import check_master, is_here, warn_if_elsewhere

_UNKNOWN = "no-such-host.invalid"


def test_here_and_elsewhere() -> None:
    assert is_here("127.0.0.1") and is_here("localhost") and is_here(socket.gethostname())
    assert not is_here("192.0.2.77") and not is_here(_UNKNOWN) and not is_here("a" * 70 + ".b")


def test_rank_0_warns_of_an_address_that_is_not_its_own(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("127.0.0.1", "localhost", socket.gethostname()):
        warn_if_elsewhere(name)
    assert not caplog.records
    for name in ("192.0.2.77", _UNKNOWN):
        warn_if_elsewhere(name)
        assert (
            f"rank 0 runs on host {socket.gethostname()}, but the master address {name}, which all ranks"
            " connect to, is not an address of this host" in caplog.text
        )


def test_a_known_name_takes_no_time() -> None:
    check_master("localhost", "torchrun", 300.0, {})
    check_master("::1", "torchrun", 300.0, {})


def test_an_unknown_name_is_an_error_that_says_who_gave_it(caplog: pytest.LogCaptureFixture) -> None:
    start = time.monotonic()
    with pytest.raises(
        ConfigError, match=rf"^\[smdp\] SMDP_MASTER_ADDR='{_UNKNOWN}' cannot be resolved .* after 1 s"
    ):
        check_master(_UNKNOWN, "SMDP_* variables", 1.0, {"SMDP_MASTER_ADDR": _UNKNOWN})
    with pytest.raises(
        ConfigError, match=rf"MASTER_ADDR='{_UNKNOWN}' cannot be resolved.*set MASTER_ADDR to a name"
    ):
        check_master(_UNKNOWN, "torchrun", 0.1, {"MASTER_ADDR": _UNKNOWN})
    with pytest.raises(ConfigError, match=rf"'{_UNKNOWN}', provided by SLURM, cannot.*set SMDP_MASTER_ADDR"):
        check_master(_UNKNOWN, "SLURM", 0.1, {})
    assert time.monotonic() - start < 60
    assert len(caplog.records) == 3  # one warning each, not one per try
    assert "retrying for 1 s" in caplog.text


def test_an_unknown_name_ends_init_in_seconds() -> None:
    environ = {
        **os.environ,
        "SMDP_RANK": "1",
        "SMDP_WORLD_SIZE": "2",
        "SMDP_MASTER_ADDR": _UNKNOWN,
        "SMDP_MASTER_PORT": "7000",
        "SMDP_INIT_TIMEOUT": "2",
    }
    done = subprocess.run(
        [sys.executable, "-c", "import smdp; smdp.init()"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert f"SMDP_MASTER_ADDR='{_UNKNOWN}' cannot be resolved on host" in done.stderr


def test_without_mpiexec_there_is_no_proxy() -> None:
    assert hydra.control_port() == ""
