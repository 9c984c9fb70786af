"""Parse every SMDP_* variable; the only module that knows their names, defaults and allowed values.

A variable that is set to the empty string counts as not set. A wrong value is a ConfigError of one line
that names the variable, the value and what is allowed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from smdp._arguments import seconds
from smdp._errors import ConfigError
from smdp._shown import shown

ALGORITHMS = ("auto", "one_shot", "two_shot", "direct", "ring", "recursive_doubling", "tree")
KERNELS = ("generic", "avx2", "avx512", "neon")
LOG_LEVELS = ("error", "warning", "info", "debug")
TENSORFLOW_OPS = ("native", "python")

DEFAULT_TIMEOUT_S = 1800.0
DEFAULT_INIT_TIMEOUT_S = 300.0
DEFAULT_PREEMPTED_EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: try again later

_BOOLEANS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_BYTE_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SECRET_NAMES = ("SECRET", "TOKEN", "PASSWORD", "CREDENTIAL", "PRIVATE", "API_KEY", "ACCESS_KEY")


class Variable(NamedTuple):
    """One row of the table of environment variables."""

    name: str
    default: str
    meaning: str


VARIABLES: tuple[Variable, ...] = (
    Variable("SMDP_RANK", "from the launcher", "Rank of this process, 0 to world size - 1."),
    Variable("SMDP_WORLD_SIZE", "from the launcher", "Number of processes of the job."),
    Variable("SMDP_LOCAL_RANK", "from the launcher", "Rank among the processes of this host."),
    Variable("SMDP_LOCAL_WORLD_SIZE", "from the launcher", "Number of processes of the job on this host."),
    Variable("SMDP_MASTER_ADDR", "MASTER_ADDR, then the launcher's", "Address under which all reach rank 0."),
    Variable("SMDP_MASTER_PORT", "MASTER_PORT + 1, then the launcher's", "Port of rank 0's store."),
    Variable("SMDP_TIMEOUT", "1800", "Seconds after which an operation that waits for another rank fails."),
    Variable("SMDP_INIT_TIMEOUT", "300", "Seconds to wait for all ranks to join."),
    Variable("SMDP_SECRET", "drawn by rank 0", "The job's secret; a process without it cannot join."),
    Variable("SMDP_SECRET_FILE", "", "File that holds the secret, instead of SMDP_SECRET."),
    Variable(
        "SMDP_ALGORITHM",
        "auto",
        f"Algorithm of all_reduce: {', '.join(ALGORITHMS)}. Each is for one host or for several: see the "
        "table below.",
    ),
    Variable("SMDP_FORCE_KERNEL", "the fastest", f"Reduction kernel, for tests: {', '.join(KERNELS)}."),
    Variable(
        "SMDP_SOCKET_IFNAME",
        "NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, then the route to the master",
        "Network interfaces between hosts, comma-separated; several are used side by side.",
    ),
    Variable("SMDP_HOST_ID", "found out", "Ranks with the same value count as one host; for tests."),
    Variable("SMDP_THREADS", "1", "Progress threads per process, 1 to 64."),
    Variable(
        "SMDP_STREAMS",
        "1 per network interface",
        "TCP connections to each peer, 1 to 64. Left alone, gradients of up to 16 ranks try 4 when the model "
        "is wrapped, and keep them where they are faster.",
    ),
    Variable(
        "SMDP_CHUNK_BYTES", "256K; 2M for gradients or if ranks > cores", "Bytes of a shared-memory chunk."
    ),
    Variable("SMDP_TRACE", "", "Directory for traces in Chrome's format; see `smdp trace`."),
    Variable("SMDP_STALL_TIME", "60", "Seconds after which a waiting operation is logged; 0: never."),
    Variable("SMDP_LOG_LEVEL", "LOGLEVEL, then warning", f"How much is logged: {', '.join(LOG_LEVELS)}."),
    Variable(
        "SMDP_DETERMINISTIC",
        "1",
        "1, and 0, which is the same: every run of a job gives the same bits; strict: also, all_reduce adds "
        "rank by rank.",
    ),
    Variable(
        "SMDP_TENSORFLOW_OPS",
        "native where it loads",
        f"How smdp.tensorflow's ops run: {', '.join(TENSORFLOW_OPS)}.",
    ),
    Variable(
        "SMDP_PREEMPTED_EXIT_CODE",
        "75",
        "Exit code that asks for a restart after SIGTERM, 1 to 125; see Spot machines.",
    ),
    Variable("SMDP_COMPAT", "0", "1 lets scripts written for SMDDP and Horovod run on smdp."),
    Variable("SMDP_DISABLE_AUTOLOAD", "0", "1 keeps `import torch` from registering the backend smdp."),
)


@dataclass(frozen=True)
class Config:
    """All that can be tuned by a variable; None leaves the choice to the core."""

    timeout_s: float = DEFAULT_TIMEOUT_S
    init_timeout_s: float = DEFAULT_INIT_TIMEOUT_S
    secret: str | None = None
    algorithm: str | None = None
    force_kernel: str | None = None
    socket_ifname: tuple[str, ...] = ()
    host_id: str | None = None
    threads: int | None = None
    streams: int | None = None
    chunk_bytes: int | None = None
    trace: str | None = None
    stall_time_s: int | None = None
    log_level: str | None = None
    deterministic: str | None = None
    preempted_exit_code: int = DEFAULT_PREEMPTED_EXIT_CODE
    compat: bool = False
    disable_autoload: bool = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Config:
        """Read and check every variable that is not about ranks.

        Raises:
            ConfigError: One is not what it should be.
        """
        timeout_s = read_seconds(environ, "SMDP_TIMEOUT")
        init_timeout_s = read_seconds(environ, "SMDP_INIT_TIMEOUT")
        return cls(
            timeout_s=DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s,
            init_timeout_s=DEFAULT_INIT_TIMEOUT_S if init_timeout_s is None else init_timeout_s,
            secret=_read_secret(environ),
            algorithm=read_choice(environ, "SMDP_ALGORITHM", ALGORITHMS),
            force_kernel=read_choice(environ, "SMDP_FORCE_KERNEL", KERNELS),
            socket_ifname=_read_interfaces(environ),
            host_id=read(environ, "SMDP_HOST_ID"),
            threads=read_int(environ, "SMDP_THREADS", minimum=1, maximum=64),
            streams=read_int(environ, "SMDP_STREAMS", minimum=1, maximum=64),
            chunk_bytes=_read_chunk_bytes(environ),
            trace=read(environ, "SMDP_TRACE"),
            stall_time_s=read_int(environ, "SMDP_STALL_TIME", maximum=10**7),
            log_level=read_log_level(environ),
            deterministic=_read_deterministic(environ),
            preempted_exit_code=read_preempted_exit_code(environ),
            compat=bool(read_bool(environ, "SMDP_COMPAT")),
            disable_autoload=bool(read_bool(environ, "SMDP_DISABLE_AUTOLOAD")),
        )

    def options(self, master_addr: str | None = None) -> dict[str, str]:
        """Give what _core.Group takes: names without SMDP_, in lower case; only what is known.

        Args:
            master_addr: The address by which other ranks reach rank 0.
        """
        values: dict[str, object | None] = {
            "secret": self.secret,
            "algorithm": self.algorithm,
            "force_kernel": self.force_kernel,
            "socket_ifname": ",".join(self.socket_ifname) or None,
            "host_id": self.host_id,
            "threads": self.threads,
            "streams": self.streams,
            "chunk_bytes": self.chunk_bytes,
            "trace": self.trace,
            "stall_time": self.stall_time_s,
            "log_level": self.log_level,
            "deterministic": self.deterministic,
            "init_timeout": f"{self.init_timeout_s:g}",
            "master_addr": master_addr or None,
        }
        return {name: str(value) for name, value in values.items() if value is not None}


def options(environ: Mapping[str, str] = os.environ, *, master_addr: str | None = None) -> dict[str, str]:
    """Read the environment and give the options of _core.Group.

    Args:
        environ: The variables.
        master_addr: The address by which other ranks reach rank 0; default SMDP_MASTER_ADDR.

    Raises:
        ConfigError: A variable is not what it should be.
    """
    return Config.from_environ(environ).options(master_addr or read(environ, "SMDP_MASTER_ADDR"))


def invalid(name: str, value: object, allowed: str) -> ConfigError:
    """Make the one-line error for a wrong value."""
    text = value if isinstance(value, str) else shown(value, 120)
    if len(text) > 120:
        text = text[:117] + "..."
    return ConfigError(f"{name}={text!r} is not valid; allowed: {allowed}")


def read(environ: Mapping[str, str], name: str) -> str | None:
    """Give the value without surrounding blanks, None if there is none.

    Raises:
        ConfigError: Its bytes are no text, which the core needs.
    """
    text = environ.get(name, "").strip()
    if name.startswith(("SMDP_", "MASTER_")):
        try:
            text.encode()
        except UnicodeEncodeError:  # as os.environ has such bytes
            raise invalid(name, text, "text in UTF-8") from None
    return text or None


def read_int(
    environ: Mapping[str, str], name: str, *, minimum: int = 0, maximum: int = 2**31 - 1
) -> int | None:
    """Read an integer between minimum and maximum.

    Raises:
        ConfigError: It is none.
    """
    text = read(environ, name)
    if text is None:
        return None
    try:
        value = int(text) if text.isascii() and "_" not in text else None
    except ValueError:
        value = None
    is_bounded = maximum != 2**31 - 1 or (value is not None and value > maximum)
    allowed = f"an integer >= {minimum}" + (f" and <= {maximum}" if is_bounded else "")
    if value is None or not minimum <= value <= maximum:
        raise invalid(name, text, allowed)
    return value


def read_port(environ: Mapping[str, str], name: str) -> int | None:
    """Read a TCP port.

    Raises:
        ConfigError: It is none.
    """
    text = read(environ, name)
    try:
        return read_int(environ, name, minimum=1, maximum=65535)
    except ConfigError:
        raise invalid(name, text, "a port, 1 to 65535") from None


def read_seconds(environ: Mapping[str, str], name: str) -> float | None:
    """Read a number of seconds above 0; "inf" is the longest time that the core has.

    Raises:
        ConfigError: It is none.
    """
    text = read(environ, name)
    if text is None:
        return None
    try:
        return seconds(name, float(text if text.isascii() and "_" not in text else ""))
    except ValueError:
        raise invalid(name, text, "a number of seconds above 0") from None


def read_preempted_exit_code(environ: Mapping[str, str]) -> int:
    """Read the exit code that asks for a restart.

    Raises:
        ConfigError: It is none that a program can choose.
    """
    code = read_int(environ, "SMDP_PREEMPTED_EXIT_CODE", minimum=1, maximum=125)
    return DEFAULT_PREEMPTED_EXIT_CODE if code is None else code


def read_bool(environ: Mapping[str, str], name: str) -> bool | None:
    """Read a truth value: 1/0, true/false, yes/no.

    Raises:
        ConfigError: It is none.
    """
    text = read(environ, name)
    if text is None:
        return None
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise invalid(name, text, ", ".join(_BOOLEANS))
    return value


def read_choice(environ: Mapping[str, str], name: str, choices: Sequence[str]) -> str | None:
    """Read one of a few words, upper or lower case.

    Raises:
        ConfigError: It is another word.
    """
    text = read(environ, name)
    if text is None:
        return None
    if text.lower() not in choices:
        raise invalid(name, text, ", ".join(choices))
    return text.lower()


def parse_bytes(text: str) -> int | None:
    """Parse a size like 4096, 4K, 1M or 1G (powers of 1024); None if it is no size.

    Example:
        >>> parse_bytes("4K")
        4096
    """
    digits, unit = text.strip().lower().removesuffix("ib").removesuffix("b"), 1
    if digits[-1:] in _BYTE_UNITS:
        digits, unit = digits[:-1], _BYTE_UNITS[digits[-1]]
    if not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits) * unit


def is_secret(name: str) -> bool:
    """Tell whether a variable's value must not be shown."""
    return not name.endswith("_FILE") and any(part in name.upper() for part in _SECRET_NAMES)


def unknown(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the names of SMDP_* variables that mean nothing to smdp: mostly misspelt ones.

    SMDP_TEST_* and variables that are set to the empty string are left out.
    """
    known = {variable.name for variable in VARIABLES}
    return sorted(
        name
        for name, value in environ.items()
        if name.startswith("SMDP_") and not name.startswith("SMDP_TEST_") and name not in known and value
    )


def _read_secret(environ: Mapping[str, str]) -> str | None:
    secret = read(environ, "SMDP_SECRET")
    path = read(environ, "SMDP_SECRET_FILE")
    if path is None:
        return secret
    if secret is not None:
        raise ConfigError(f"SMDP_SECRET and SMDP_SECRET_FILE={path!r} are both set; allowed: one of them")
    allowed = "a readable text file that holds the secret"
    try:
        with open(path, encoding="utf-8") as file:
            secret = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise invalid("SMDP_SECRET_FILE", path, f"{allowed} ({reason})") from None
    if not secret:
        raise invalid("SMDP_SECRET_FILE", path, f"{allowed} (it is empty)")
    return secret


def _read_interfaces(environ: Mapping[str, str]) -> tuple[str, ...]:
    text = read(environ, "SMDP_SOCKET_IFNAME")
    names = interfaces()
    if text is not None:
        wanted = _split(text)
        if not wanted or (names and not set(wanted) <= set(names)):
            raise invalid("SMDP_SOCKET_IFNAME", text, f"names of this host's interfaces: {', '.join(names)}")
        return wanted
    # Other libraries' variables are hints: whatever of them exists here is taken, the rest is not our error.
    text = read(environ, "NCCL_SOCKET_IFNAME")
    if text is not None and not text.startswith("^"):  # ^ excludes: the route to the master does that already
        exact = text.startswith("=")
        parts = _split(text.removeprefix("="))
        found = [n for n in names if n in parts or (not exact and n.startswith(parts))]
        if found:
            return tuple(found)
    text = read(environ, "GLOO_SOCKET_IFNAME")
    return tuple(n for n in _split(text or "") if n in names)


def _split(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def interfaces() -> list[str]:
    """Give the names of this host's network interfaces, empty where they cannot be had."""
    try:
        return [name for _, name in socket.if_nameindex()]
    except OSError:
        return []


def _read_chunk_bytes(environ: Mapping[str, str]) -> int | None:
    text = read(environ, "SMDP_CHUNK_BYTES")
    if text is None:
        return None
    value = parse_bytes(text)
    if value is None or value % 4096 or not 16 << 10 <= value <= 64 << 20:
        raise invalid("SMDP_CHUNK_BYTES", text, "a multiple of 4K from 16K to 64M, as bytes or with K, M")
    return value


def read_log_level(environ: Mapping[str, str]) -> str | None:
    """Give SMDP_LOG_LEVEL, else LOGLEVEL where it is one of ours, else None.

    Raises:
        ConfigError: SMDP_LOG_LEVEL is no level.
    """
    level = read_choice(environ, "SMDP_LOG_LEVEL", LOG_LEVELS)
    if level is not None:
        return level
    neutral = (read(environ, "LOGLEVEL") or "").lower()
    neutral = {"warn": "warning", "critical": "error", "fatal": "error"}.get(neutral, neutral)
    return neutral if neutral in LOG_LEVELS else None


def _read_deterministic(environ: Mapping[str, str]) -> str | None:
    text = read(environ, "SMDP_DETERMINISTIC")
    if text is None:
        return None
    if text.lower() == "strict":
        return "strict"
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise invalid("SMDP_DETERMINISTIC", text, f"{', '.join(_BOOLEANS)}, strict")
    return "1" if value else "0"
