"""Every SMDP_* variable: what is read, what is refused, and in which words."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest

import smdp._errors as errors
from smdp import config

# Adding a variable means adding it here and to the documentation.
FROZEN = [
    "SMDP_RANK",
    "SMDP_WORLD_SIZE",
    "SMDP_LOCAL_RANK",
    "SMDP_LOCAL_WORLD_SIZE",
    "SMDP_MASTER_ADDR",
    "SMDP_MASTER_PORT",
    "SMDP_TIMEOUT",
    "SMDP_INIT_TIMEOUT",
    "SMDP_SECRET",
    "SMDP_SECRET_FILE",
    "SMDP_ALGORITHM",
    "SMDP_FORCE_KERNEL",
    "SMDP_SOCKET_IFNAME",
    "SMDP_HOST_ID",
    "SMDP_THREADS",
    "SMDP_STREAMS",
    "SMDP_CHUNK_BYTES",
    "SMDP_TRACE",
    "SMDP_STALL_TIME",
    "SMDP_LOG_LEVEL",
    "SMDP_DETERMINISTIC",
    "SMDP_TENSORFLOW_OPS",
    "SMDP_PREEMPTED_EXIT_CODE",
    "SMDP_COMPAT",
    "SMDP_DISABLE_AUTOLOAD",
]


def test_the_list_of_variables_is_frozen() -> None:
    assert [variable.name for variable in config.VARIABLES] == FROZEN
    assert all(variable.meaning.endswith(".") for variable in config.VARIABLES)


def test_no_other_module_reads_an_unlisted_variable() -> None:
    root = Path(config.__file__).parent
    import re

    known = {variable.name for variable in config.VARIABLES}
    for path in root.rglob("*.py"):
        found = set(re.findall(r"\bSMDP_[A-Z][A-Z_]*[A-Z]\b", path.read_text()))
        assert found <= known, f"{path} knows {found - known}"


def test_nothing_set_gives_the_defaults() -> None:
    with mock.patch.dict(os.environ, clear=True):
        assert config.Config.from_environ() == config.Config()
        assert config.options() == {"init_timeout": "300"}
        assert config.Config().timeout_s == 1800


def test_options_hold_all_that_is_set() -> None:
    environ = {
        "SMDP_SECRET": " s3cret\n",
        "SMDP_ALGORITHM": "Two_Shot",
        "SMDP_FORCE_KERNEL": "avx2",
        "SMDP_SOCKET_IFNAME": "lo, lo",
        "SMDP_HOST_ID": "a",
        "SMDP_THREADS": "2",
        "SMDP_STREAMS": "4",
        "SMDP_CHUNK_BYTES": "256K",
        "SMDP_TRACE": "traces",
        "SMDP_STALL_TIME": "30",
        "SMDP_LOG_LEVEL": "DEBUG",
        "SMDP_DETERMINISTIC": "strict",
        "SMDP_INIT_TIMEOUT": "2.5",
        "SMDP_MASTER_ADDR": "10.0.0.1",
    }
    with mock.patch.dict(os.environ, environ, clear=True):
        assert config.options() == {
            "secret": "s3cret",
            "algorithm": "two_shot",
            "force_kernel": "avx2",
            "socket_ifname": "lo",
            "host_id": "a",
            "threads": "2",
            "streams": "4",
            "chunk_bytes": "262144",
            "trace": "traces",
            "stall_time": "30",
            "log_level": "debug",
            "deterministic": "strict",
            "init_timeout": "2.5",
            "master_addr": "10.0.0.1",
        }
        assert config.options(master_addr="fd00::1")["master_addr"] == "fd00::1"


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("SMDP_TIMEOUT", "soon", "a number of seconds above 0"),
        ("SMDP_TIMEOUT", "1_0", "a number of seconds above 0"),
        ("SMDP_TIMEOUT", "\uff15", "a number of seconds above 0"),
        ("SMDP_TIMEOUT", "0", "a number of seconds above 0"),
        ("SMDP_TIMEOUT", "nan", "a number of seconds above 0"),
        ("SMDP_TIMEOUT", "-inf", "a number of seconds above 0"),
        ("SMDP_INIT_TIMEOUT", "-1", "a number of seconds above 0"),
        ("SMDP_ALGORITHM", "magic", "one_shot"),
        ("SMDP_FORCE_KERNEL", "sse", "avx512"),
        ("SMDP_SOCKET_IFNAME", "no-such-0", "lo"),
        ("SMDP_SOCKET_IFNAME", ",", "lo"),
        ("SMDP_THREADS", "0", "an integer >= 1 and <= 64"),
        ("SMDP_STREAMS", "1e3", "an integer >= 1 and <= 64"),
        ("SMDP_STALL_TIME", "99999999999", "an integer >= 0 and <= 10000000"),
        ("SMDP_STREAMS", "1_0", "an integer >= 1 and <= 64"),
        ("SMDP_CHUNK_BYTES", "100", "a multiple of 4K"),
        ("SMDP_CHUNK_BYTES", "2G", "a multiple of 4K"),
        ("SMDP_CHUNK_BYTES", "-64", "a multiple of 4K"),
        ("SMDP_LOG_LEVEL", "loud", "error, warning, info, debug"),
        ("SMDP_DETERMINISTIC", "maybe", "strict"),
        ("SMDP_DISABLE_AUTOLOAD", "on", "1, true, yes, 0, false, no"),
        ("SMDP_COMPAT", "banana", "1, true, yes, 0, false, no"),
        ("SMDP_SECRET_FILE", "/no/such/file", "a readable text file"),
        ("SMDP_SECRET_FILE", "/dev/null", "it is empty"),
    ],
)
def test_a_wrong_value_is_an_error_of_one_line(name: str, value: str, allowed: str) -> None:
    with (
        mock.patch.dict(os.environ, {name: value}, clear=True),
        pytest.raises(errors.ConfigError) as caught,
    ):
        config.options()
    message = str(caught.value)
    assert "\n" not in message
    assert f"{name}={value!r}" in message
    assert allowed in message


@pytest.mark.parametrize(
    ("text", "expected"), [("inf", 1e7), ("1e300", 1e7), ("1e7", 1e7), ("2.5", 2.5), ("1e-9", 1e-3)]
)
def test_time_limits_are_what_the_core_can_count(text: str, expected: float) -> None:
    found = config.Config.from_environ({"SMDP_TIMEOUT": text, "SMDP_INIT_TIMEOUT": text})
    assert (found.timeout_s, found.init_timeout_s) == (expected, expected)


def test_secret_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("from file\n")
    assert config.options({"SMDP_SECRET_FILE": str(path)})["secret"] == "from file"
    with pytest.raises(errors.ConfigError) as caught:
        config.options({"SMDP_SECRET_FILE": str(path), "SMDP_SECRET": "direct"})
    assert str(caught.value) == (
        f"SMDP_SECRET and SMDP_SECRET_FILE={str(path)!r} are both set; set only one of them"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", True), ("yes", True), ("TRUE", True), ("0", False), ("No", False), ("false", False), ("", False)],
)
def test_booleans(text: str, expected: bool) -> None:
    assert config.Config.from_environ({"SMDP_DISABLE_AUTOLOAD": text}).disable_autoload is expected
    assert config.Config.from_environ({"SMDP_COMPAT": text}).compat is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", "1"), ("no", "0"), ("Strict", "strict"), ("true", "1")],
)
def test_deterministic(text: str, expected: str) -> None:
    assert config.options({"SMDP_DETERMINISTIC": text})["deterministic"] == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"NCCL_SOCKET_IFNAME": "eth"}, ("eth0", "eth1")),
        ({"NCCL_SOCKET_IFNAME": "=eth0"}, ("eth0",)),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, ()),
        ({"NCCL_SOCKET_IFNAME": "^docker0,lo"}, ()),
        ({"NCCL_SOCKET_IFNAME": "ib", "GLOO_SOCKET_IFNAME": "lo"}, ("lo",)),
        ({"GLOO_SOCKET_IFNAME": "lo,lo,lo"}, ("lo",)),
        ({"GLOO_SOCKET_IFNAME": "no-such-0"}, ()),
        ({"SMDP_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "eth0"}, ("eth1",)),
    ],
)
def test_interfaces_fall_back_to_other_libraries_variables(
    environ: dict[str, str], expected: tuple[str, ...]
) -> None:
    with mock.patch.object(config, "interfaces", return_value=["lo", "eth0", "eth1"]):
        assert config.Config.from_environ(environ).socket_ifname == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"LOGLEVEL": "INFO"}, "info"),
        ({"LOGLEVEL": "WARN"}, "warning"),
        ({"LOGLEVEL": "NOTSET"}, None),
        ({"LOGLEVEL": "INFO", "SMDP_LOG_LEVEL": "error"}, "error"),
    ],
)
def test_log_level_falls_back(environ: dict[str, str], expected: str | None) -> None:
    assert config.Config.from_environ(environ).log_level == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", 4096),
        ("4K", 4096),
        ("4k", 4096),
        ("4KiB", 4096),
        ("1M", 1 << 20),
        ("1GB", 1 << 30),
        ("x", None),
        ("", None),
        ("K", None),
        ("1.5K", None),
    ],
)
def test_parse_bytes(text: str, expected: int | None) -> None:
    assert config.parse_bytes(text) == expected


def test_secrets_are_known_by_name() -> None:
    assert config.is_secret("SMDP_SECRET")
    assert config.is_secret("HF_TOKEN")
    assert not config.is_secret("SMDP_SECRET_FILE")
    assert not config.is_secret("SMDP_RANK")


def test_misspelt_variables_are_found() -> None:
    assert config.unknown({"SMDP_ALGORITM": "ring", "SMDP_RANK": "0"}) == ["SMDP_ALGORITM"]
