"""Ranks that a framework passes on, beside the launcher's."""

from __future__ import annotations

import logging

import pytest

from smdp import ConfigError
from smdp.environments.given_ranks import check_given_ranks, warn_of_given_ranks

SHELL = {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
SMDP_RUN = {"SMDP_RANK": "1", "SMDP_WORLD_SIZE": "4", "RANK": "1", "WORLD_SIZE": "4"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("environ", "rank", "size", "source"),
    [
        ({**SHELL, **SMDP_RUN}, 0, 4, "SMDP_* variables"),
        ({**SMDP_RUN, "SMDP_MASTER_PORT": "5001", "MASTER_PORT": "5000"}, 0, 4, "SMDP_* variables"),
        ({**SHELL, **MPIRUN}, 0, 4, "Open MPI"),
        (TORCHRUN, 0, 4, "torchrun"),
        # Each would train alone.
        (SMDP_RUN, 0, 1, "SMDP_* variables"),
        (MPIRUN, 0, 1, "Open MPI"),
        ({**TORCHRUN, "MASTER_PORT": "5000"}, 0, 1, "torchrun"),
        # Lightning sets it, too.
        ({**SHELL, **MPIRUN, "MASTER_PORT": "15001"}, 0, 4, "Open MPI"),
        # What Lightning makes of LOCAL_RANK=1 and devices=1.
        (SMDP_RUN, 1, 1, "SMDP_* variables"),
    ],
)
def test_contradictions_name_both(environ: dict[str, str], rank: int, size: int, source: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_given_ranks(rank, size, "somebody", environ)
    assert f"rank {rank} of {size} according to somebody, and rank 1 of 4 according to {source}." in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("environ", "rank", "size"),
    [
        (SMDP_RUN, 1, 4),
        (SHELL, 0, 4),  # no launcher
        (MPIRUN, 5, 8),  # one process per host, which has started more
        (MPIRUN, 0, 2),  # a part of the ranks
        ({**SMDP_RUN, "SMDP_WORLD_SIZE": "1", "SMDP_RANK": "0"}, 1, 2),
        # The program has chosen the port.
        ({**SMDP_RUN, "SMDP_MASTER_PORT": "5001", "MASTER_PORT": "6000"}, 0, 1),
        ({**SMDP_RUN, "SMDP_MASTER_PORT": "5001", "MASTER_PORT": "0"}, 0, 1),
        ({**MPIRUN, "MASTER_PORT": "5000"}, 0, 1),
        (MPIRUN, 2, 4),  # the program numbers its ranks differently
        # torchrun below `smdp run`.
        ({**SMDP_RUN, **TORCHRUN, "RANK": "3"}, 3, 4),
        ({**SMDP_RUN, **TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}, 0, 1),
        ({**MPIRUN, "OMPI_COMM_WORLD_SIZE": "many"}, 0, 4),
    ],
)
def test_what_may_be_meant(environ: dict[str, str], rank: int, size: int) -> None:
    check_given_ranks(rank, size, "somebody", environ)


def test_a_place_of_ones_own_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in SMDP_RUN.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.WARNING, "smdp"):
        warn_of_given_ranks(1, 4, "somebody")
        assert not caplog.messages
        warn_of_given_ranks(3, 4, "somebody")
    assert "rank 3 of 4 according to somebody, and rank 1 of 4 according to SMDP_*" in caplog.messages[0]
