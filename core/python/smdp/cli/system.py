"""Describes this machine from /proc and /sys; missing information is None or empty."""

from __future__ import annotations

import fcntl
import os
import platform
import resource
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

from smdp import _kernel_files

# Instruction sets that matter to the reduction kernels, as spelled in /proc/cpuinfo.
_FEATURES = (
    "sse4_2", "avx", "avx2", "f16c", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "avx512_fp16",
    "amx_bf16", "asimd", "asimdhp", "bf16", "sve",
)  # fmt: skip


def cgroup_quota() -> float | None:
    """Returns the number of cores that the cgroup allows, or None if it sets no limit."""
    best: float | None = None
    for directory in _kernel_files.cgroup_directories("cpu"):
        quota, period = None, None
        if (text := _kernel_files.read_text(directory / "cpu.max")) is not None:
            quota, _, period = text.partition(" ")
        elif (quota := _kernel_files.read_text(directory / "cpu.cfs_quota_us")) is not None:
            period = _kernel_files.read_text(directory / "cpu.cfs_period_us")
        try:
            cores = int(quota or "") / int(period or "")
        except (ValueError, ZeroDivisionError):
            continue
        if cores > 0:
            best = cores if best is None else min(best, cores)
    return best


def affinity() -> int:
    """Returns the number of cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def available_cores() -> float:
    """Returns the number of cores available to this process, by affinity and cgroup quota."""
    quota = cgroup_quota()
    return float(affinity()) if quota is None else min(float(affinity()), max(quota, 1.0))


def cpu() -> dict[str, object]:
    """Returns a description of the processor."""
    info = _kernel_files.read_text("/proc/cpuinfo") or ""
    values: dict[str, str] = {}
    for line in info.splitlines():
        name, _, value = line.partition(":")
        values.setdefault(name.strip(), value.strip())
    flags = (values.get("flags") or values.get("Features") or "").split()
    return {
        "model": values.get("model name") or values.get("Processor") or values.get("CPU part") or "unknown",
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "affinity": affinity(),
        "cgroup_quota": cgroup_quota(),
        "features": [feature for feature in _FEATURES if feature in flags],
        "numa_nodes": numa(),
    }


def numa() -> dict[str, str]:
    """Returns the cores of each NUMA node."""
    nodes = sorted(Path("/sys/devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:]))
    return {node.name: _kernel_files.read_text(node / "cpulist") or "" for node in nodes}


def total_memory() -> int | None:
    """Returns the machine's memory in bytes."""
    for line in (_kernel_files.read_text("/proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


def memory() -> dict[str, object]:
    """Returns the memory and its limits in bytes."""
    limit = _kernel_files.memory_limit()
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        stat = os.statvfs("/dev/shm")
        shm: int | None = stat.f_frsize * stat.f_blocks
    except OSError:
        shm = None
    return {
        "total": total_memory(),
        "cgroup_limit": None if limit is None else limit.bytes,
        "memlock": _limit(soft),
        "memlock_hard": _limit(hard),
        "dev_shm": shm,
    }


def _limit(value: int) -> int | str:
    return "unlimited" if value == resource.RLIM_INFINITY else value


def network() -> list[dict[str, object]]:
    """Returns the network interfaces with name, addresses, speed in Mbit/s, and state."""
    v6: dict[str, list[str]] = {}
    for line in (_kernel_files.read_text("/proc/net/if_inet6") or "").splitlines():
        parts = line.split()
        if len(parts) == 6:
            v6.setdefault(parts[5], []).append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(parts[0])))
    result: list[dict[str, object]] = []
    try:
        names = [name for _, name in socket.if_nameindex()]
    except OSError:
        names = []
    for name in names:
        directory = Path("/sys/class/net") / name
        speed = _kernel_files.read_text(
            directory / "speed"
        )  # EINVAL if the interface has no speed, -1 if it is down
        result.append(
            {
                "name": name,
                "state": _kernel_files.read_text(directory / "operstate") or "unknown",
                "addresses": _ipv4(name) + v6.get(name, []),
                "speed_mbit": int(speed) if speed and speed.isdigit() else None,
                "mtu": int(_kernel_files.read_text(directory / "mtu") or 0) or None,
            }
        )
    return result


def _ipv4(name: str) -> list[str]:
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
        except OSError:
            return []
    return [socket.inet_ntoa(answer[20:24])]


def fabric() -> dict[str, object]:
    """Returns the RDMA devices. EFA is detected by its driver, never by the machine's type."""
    devices = {}
    for path in sorted(Path("/sys/class/infiniband").glob("*")):
        driver = path / "device" / "driver"
        try:
            devices[path.name] = os.path.basename(os.readlink(driver))
        except OSError:
            devices[path.name] = "unknown"
    return {"devices": devices, "efa": any(driver == "efa" for driver in devices.values())}


def gpus() -> list[str]:
    """Returns the names of the GPUs, from nvidia-smi or the driver's files."""
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        try:
            done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.SubprocessError):
            done = None
        if done is not None and done.returncode == 0:
            return [line.strip() for line in done.stdout.splitlines() if line.strip()]
    result = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = (_kernel_files.read_text(path) or "").splitlines()
        result += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return result


def guarded(probe: Callable[[], object]) -> object:
    """Returns the result of a probe, or a text with its error if it raises one."""
    try:
        return probe()
    except Exception as error:  # noqa: BLE001 - the report must not fail on an unusual machine
        return f"not available ({type(error).__name__}: {error})"
