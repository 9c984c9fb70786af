"""Sizes, bandwidths and table of `smdp bench`, as defined by nccl-tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from smdp import config

# Operations whose buffer holds one part per rank.
_SHARED = ("reduce_scatter", "all_gather", "all_to_all")


def bus_factor(operation: str, ranks: int) -> float:
    """Returns busbw / algbw: the bytes that pass each rank's link per byte of the buffer."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if operation in _SHARED else 1.0


def is_split(operation: str) -> bool:
    """Returns whether the buffer holds one equal part per rank."""
    return operation in _SHARED


def parse_size(option: str, text: str) -> int:
    """Parses a size such as 4096, 4K, 1M or 1G.

    Raises:
        ConfigError: The text is not a size above 0.
    """
    value = config.parse_bytes(text)
    if not value:
        raise config.invalid(option, text, "a number of bytes above 0, e.g. 4096, 4K, 1M or 1G")
    return value


def steps(begin: int, end: int, factor: float) -> list[int]:
    """Returns the sizes from begin to end, each of them `factor` times the previous one. The last is `end`.

    Example:
        >>> steps(1, 30, 5)
        [1, 5, 25, 30]
    """
    if begin > end:
        raise config.invalid("-b", begin, f"at most -e {end}")
    if not 1 < factor < float("inf"):
        raise config.invalid("-f", factor, "a number above 1")
    sizes: list[int] = []
    size = float(begin)
    while size <= end:
        if not sizes or round(size) != sizes[-1]:
            sizes.append(round(size))
        size *= factor
    return sizes if sizes[-1] == end else [*sizes, end]


def iterations(size: int) -> tuple[int, int]:
    """Returns (rounds, iterations per round), chosen so that every size takes a few seconds."""
    rounds = 11 if size < 32 << 20 else 7
    return rounds, max(4, min(400, (256 << 20) // max(size, 1)))


@dataclass(frozen=True)
class Measurement:
    """Result of one contender at one size. `seconds` is the slowest rank's median time per iteration."""

    contender: str
    size: int
    count: int
    dtype: str
    seconds: float
    algbw: float
    busbw: float
    ratio: float | None  # peer's time / smdp's time; above 1, smdp is faster


def measurement(
    contender: str, operation: str, ranks: int, size: int, count: int, dtype: str, seconds: float
) -> Measurement:
    """Returns a Measurement with the bandwidths in GB/s."""
    algbw = size / seconds / 1e9 if seconds > 0 else 0.0
    return Measurement(
        contender, size, count, dtype, seconds, algbw, algbw * bus_factor(operation, ranks), None
    )


def header(names: Sequence[str]) -> str:
    """Returns the table's header lines, with smdp's columns first and then those of each peer."""
    columns = f"{'time':>10} {'algbw':>8} {'busbw':>8}"
    units = f"{'(us)':>10} {'(GB/s)':>8} {'(GB/s)':>8}"
    top = f"# {'':>11} {'':>12} {'':>9}"
    first = f"# {'size':>11} {'count':>12} {'type':>9}"
    second = f"# {'(B)':>11} {'(elements)':>12} {'':>9}"
    for index, name in enumerate(names):
        ratio = "" if index == 0 or name.startswith("smdp") else f" {'ratio':>7}"
        blank = "" if not ratio else " " * 8
        top += f"  {name:^28}{blank}"
        first += f"  {columns}{ratio}"
        second += f"  {units}{blank}"
    return "\n".join(line.rstrip() for line in (top, first, second))


def row(line: Sequence[Measurement]) -> str:
    """Returns the table row for the measurements of one size."""
    one = line[0]
    text = f"  {one.size:>11} {one.count:>12} {one.dtype:>9}"
    for item in line:
        text += f"  {item.seconds * 1e6:>10.2f} {item.algbw:>8.3f} {item.busbw:>8.3f}"
        if item.ratio is not None:
            text += f" {item.ratio:>6.2f}x"
    return text


def as_json(line: Sequence[Measurement]) -> list[dict[str, object]]:
    """Returns the measurements as dictionaries."""
    return [asdict(item) for item in line]
