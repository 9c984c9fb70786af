"""One rank of `smdp bench`: python -m smdp.cli.bench.worker '<request as JSON>'.

For each size, every contender is first verified once. Then, in each of several rounds, every contender runs
once to warm up and k times between two barriers. A contender's result is the median over rounds of the
slowest rank's time.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import statistics
import sys
import time
from typing import Any, TypeAlias

import numpy as np

from smdp import environments
from smdp._errors import SmdpError
from smdp.cli.bench import sizes
from smdp.cli.bench.peers import Peer, Work, make_peer

ByteArray: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

_CHUNK = 1 << 20  # elements verified at a time


def main(request: dict[str, Any]) -> None:
    """Runs the requested measurements; rank 0 prints the results."""
    launch = environments.detect()
    rank, ranks = launch.rank, launch.world_size
    # torch's env:// method needs its own variables, which mpirun does not set.
    for name, value in (("RANK", rank), ("WORLD_SIZE", ranks), ("LOCAL_RANK", launch.local_rank or 0)):
        os.environ[name] = str(value)
    operation, dtype = request["operation"], request["dtype"]
    peers = [make_peer(name, rank, ranks) for name in request["contenders"]]
    results: list[dict[str, object]] = []
    if rank == 0 and not request["json"]:
        count = f"{ranks} rank{'s' * (ranks > 1)}"
        print(f"# {operation}, {count}, {dtype}; ratio = peer's time / smdp's time")
        print(sizes.header(request["contenders"]), flush=True)
    # Small sizes can round to the same number of elements.
    for total in dict.fromkeys(elements(operation, size, dtype, ranks) for size in request["sizes"]):
        line = measure(peers, operation, total, dtype, rank, ranks, request["iters"])
        results += sizes.as_json(line)
        if rank == 0 and not request["json"]:
            print(sizes.row(line), flush=True)
    if rank == 0 and request["json"]:
        print(
            json.dumps({"operation": operation, "ranks": ranks, "dtype": dtype, "results": results}, indent=2)
        )
    for peer in reversed(peers):
        peer.close()


def elements(operation: str, size: int, dtype: str, ranks: int) -> int:
    """Returns the number of elements for a size in bytes: at least one, or at least one per rank."""
    total = max(1, size // item_size(dtype))
    return max(1, total // ranks) * ranks if sizes.is_split(operation) else total


def measure(
    peers: list[Peer], operation: str, total: int, dtype: str, rank: int, ranks: int, iters: int | None
) -> list[sizes.Measurement]:
    """Measures all contenders at one size, alternating between them."""
    works = []
    for peer in peers:
        work = peer.prepare(operation, total, dtype)
        peer.barrier()
        verify(peer, work, operation, total, rank, ranks)
        works.append(work)
    rounds, repeat = sizes.iterations(total * item_size(dtype))
    if iters is not None:
        rounds = min(rounds, iters)
        repeat = max(1, iters // rounds)
    times: list[list[float]] = [[] for _ in peers]
    gc.disable()
    try:
        for number in range(rounds + 1):
            for index, peer in enumerate(peers):
                run = works[index].run
                run()
                peer.barrier()
                start = time.perf_counter()
                for _ in range(repeat):
                    run()
                elapsed = (time.perf_counter() - start) / repeat
                peer.barrier()
                if number:  # the first round warms up
                    times[index].append(elapsed)
    finally:
        gc.enable()
    line: list[sizes.Measurement] = []
    base = 0.0
    for index, peer in enumerate(peers):
        seconds = statistics.median(peer.maximum(times[index]))
        item = sizes.measurement(peer.name, operation, ranks, total * item_size(dtype), total, dtype, seconds)
        if peer.name.startswith("smdp"):
            base = seconds
        elif base > 0:
            item = dataclasses.replace(item, ratio=seconds / base)
        line.append(item)
    return line


def item_size(dtype: str) -> int:
    """Returns the size of an element in bytes."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def pattern(rank: int, block: int, count: int) -> ByteArray:
    """Returns a rank's values for a block: small integers, whose sums are exact in every dtype."""
    values: ByteArray = np.resize(np.arange(5, dtype=np.uint8), count)
    values += np.uint8(rank % 3 + block % 2)
    return values


def add(parts: list[ByteArray]) -> ByteArray:
    """Adds arrays to the first one in place, and returns it."""
    for part in parts[1:]:
        parts[0] += part
    return parts[0]


def verify(peer: Peer, work: Work, operation: str, total: int, rank: int, ranks: int) -> None:
    """Runs a collective once on a known pattern and checks the result.

    Raises:
        SmdpError: The result is wrong.
    """
    part = total // ranks
    everyone = range(ranks)
    if operation in ("reduce_scatter", "all_to_all"):
        work.fill(np.concatenate([pattern(rank, block, part) for block in everyone]))
    else:
        work.fill(pattern(rank, 0, part if operation == "all_gather" else total))
    work.run()
    expected: ByteArray
    if operation == "all_reduce":
        expected = add([pattern(other, 0, total) for other in everyone])
    elif operation == "reduce_scatter":
        expected = add([pattern(other, rank, part) for other in everyone])
    elif operation == "all_gather":
        expected = np.concatenate([pattern(other, 0, part) for other in everyone])
    elif operation == "broadcast":
        expected = pattern(0, 0, total)
    else:
        expected = np.concatenate([pattern(other, rank, part) for other in everyone])
    for start in range(0, expected.size, _CHUNK):
        want = expected[start : start + _CHUNK].astype(np.float64)
        got = work.read(start, start + want.size)
        wrong = np.flatnonzero(got != want)
        if wrong.size:
            first = int(wrong[0])
            raise SmdpError(
                f"{peer.name}: {operation} of {total} elements is wrong on rank {rank} of {ranks}: element "
                f"{start + first} is {got[first]:g}, but should be {want[first]:g}"
            )
    work.clear()


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except SmdpError as error:
        sys.stderr.write(f"smdp bench: {error}\n")
        sys.stderr.flush()
        os._exit(1)  # other ranks may be inside a collective; do not wait for them
    except MemoryError as error:
        sys.stderr.write(
            f"smdp bench: not enough memory for buffers of this size ({error}); reduce -b or -e\n"
        )
        sys.stderr.flush()
        os._exit(1)
