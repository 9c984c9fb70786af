"""Every collective on NumPy arrays and other buffers, on one host and between hosts, against NumPy."""

from __future__ import annotations

from collections.abc import Callable

import pytest

COLLECTIVES = """
import copy
import ml_dtypes
g = joined()
n = g.size
ranks = range(n)
for count in (0, 1, 17, 70_001):
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int8, np.uint8, np.int16,
                  np.int32, np.int64, np.complex64, np.complex128):
        def of(rank):
            return (np.arange(count) % 5 + rank).astype(dtype)
        total = sum(of(r).astype(np.complex128) for r in ranks).astype(dtype)
        a = of(g.rank)
        b = np.empty_like(a)
        assert g.all_reduce(a, out=b) is b
        assert (b == total).all() and (a == of(g.rank)).all(), dtype
        g.all_reduce(a)
        assert (a == total).all(), dtype
        o = g.all_gather(of(g.rank))
        assert all((o[r] == of(r)).all() for r in ranks), dtype
        o = g.reduce_scatter(np.concatenate([of(r) for r in ranks]))
        assert (o == n * of(g.rank).astype(np.complex128)).all(), dtype
    for op, f in ((smdp.MIN, np.minimum), (smdp.MAX, np.maximum), (smdp.PRODUCT, np.multiply),
                  (smdp.BAND, np.bitwise_and), (smdp.BOR, np.bitwise_or), (smdp.BXOR, np.bitwise_xor)):
        def of(rank):
            return (np.arange(count) * 7 + rank * 3) % 11
        expected = of(0)
        for r in ranks[1:]:
            expected = f(expected, of(r))
        assert (g.all_reduce(of(g.rank), op) == expected).all(), op
    assert (g.all_reduce(np.full(count, g.rank + 1.0), smdp.AVG) == (n + 1) / 2).all()
    assert (g.all_reduce(np.ones(count), smdp.PREMUL_SUM, factor=g.rank + 1) == n * (n + 1) / 2).all()
    # Of 16-bit floats in float32 and rounded once: what is scaled does not fit float16.
    factor = ([2, -1.5] + [0] * n)[g.rank] if n > 1 else 0.5
    for dtype in (np.float16, ml_dtypes.bfloat16):
        x = np.full(count, 60000).astype(dtype)
        half = (x.astype(np.float32) * 0.5).astype(dtype)
        assert (g.all_reduce(x.copy(), smdp.PREMUL_SUM, factor=factor) == half).all(), dtype
        r = g.reduce(x.copy(), n - 1, smdp.PREMUL_SUM, factor=factor)
        assert (r is None) if g.rank != n - 1 else (r == half).all(), dtype
        r = g.reduce_scatter(np.concatenate([x] * n), smdp.PREMUL_SUM, factor=factor)
        assert (r == half).all(), dtype
    flags = g.all_reduce(np.arange(count) % n == g.rank)
    assert flags.dtype == np.bool_ and flags.all()
    f8 = np.full(count, g.rank, np.uint8).view(ml_dtypes.float8_e4m3fn)
    assert (g.broadcast(f8, n - 1).view(np.uint8) == n - 1).all()
    for root in ranks:
        r = g.reduce(np.full(count, g.rank + 1), root)
        assert (r is None) if g.rank != root else (r == n * (n + 1) // 2).all()
        got = g.gather(np.full(count, g.rank), root)
        assert (got is None) == (g.rank != root)
        out = np.full(count, -1)
        g.scatter(got, root, out=out)
        assert (out == g.rank).all()
    uneven = [np.full(count * r, -1) for r in ranks]
    g.all_gather(np.full(count * g.rank, g.rank), out=uneven)
    assert all((uneven[r] == r).all() for r in ranks)
    assert (g.reduce_scatter([np.full(count * r, 2) for r in ranks]) == 2 * n).all()
    back = [np.full(count * (r + g.rank), -1) for r in ranks]
    g.all_to_all([np.full(count * (r + g.rank), 10 * g.rank + r) for r in ranks], out=back)
    assert all((back[r] == 10 * r + g.rank).all() for r in ranks)
    handles = [g.all_reduce(np.full(count, i), async_op=True) for i in range(5)]
    assert all((h.wait(30) == i * n).all() and h.done() and h.error() is None for i, h in enumerate(handles))
    pair = g.all_reduce_coalesced([np.ones(count), np.full(count, 2.0, np.float32)])
    assert (pair[0] == n).all() and (pair[1] == 2 * n).all()
    own, one = np.full(count, g.rank), np.full((2, count), 0.5 * g.rank, np.float32)
    into = np.full((n, count), -1)
    gathered = g.all_gather_coalesced([own, one], out=[into, np.empty((n, 2, count), np.float32)])
    assert gathered[0] is into and all((into[r] == r).all() for r in ranks)
    assert all((gathered[1][r] == 0.5 * r).all() for r in ranks)
    handle = g.all_gather_coalesced((own, one), async_op=True)
    gathered = handle.wait(30)
    assert all((gathered[0][r] == r).all() for r in ranks) and gathered[1].shape == (n, 2, count)
    blocks = [np.full(count * r, g.rank) for r in ranks]
    scattered = g.reduce_scatter_coalesced([np.ones((n, count), np.float32), blocks], smdp.MAX)
    assert scattered[0].shape == (1, count) and (scattered[0] == 1).all()
    assert scattered[1].shape == (count * g.rank,) and (scattered[1] == n - 1).all()
    out = [np.empty(count)]
    assert g.reduce_scatter_coalesced([np.ones(n * count)], out=out)[0] is out[0] and (out[0] == n).all()
    if n > 1:
        incoming = np.empty(count)
        sent = g.send(np.full(count, float(g.rank)), (g.rank + 1) % n, tag=3, async_op=True)
        source = g.recv(incoming, tag=3)
        assert source == (g.rank - 1) % n and (incoming == source).all()
        sent.wait()
    g.barrier()
raw = bytearray(b"x" * 10 if g.rank == 0 else bytes(10))
g.broadcast(raw)
assert raw == b"x" * 10
half = g.split(g.rank % 2)
assert half.size == len([r for r in ranks if r % 2 == g.rank % 2])
assert (half.all_reduce(np.ones(3)) == half.size).all()
nobody = g.split(None)
assert copy.copy(nobody) is nobody is smdp.NO_GROUP and not nobody
try:
    nobody.barrier()
    raise AssertionError("it is in no group")
except AttributeError as error:
    assert "this rank has no group" in str(error), error
for wrong, text in (
    (lambda: g.all_reduce(np.ones((4, 4))[:, ::2]), "contiguous"),
    (lambda: g.all_reduce(b"constant"), "read-only"),
    (lambda: g.all_reduce("text"), "array"),
    (lambda: g.all_reduce(f8), "float8"),
    (lambda: g.all_reduce(np.ones(3, np.uint32)), "uint32"),
    (lambda: g.all_reduce(np.ones(3), smdp.BAND), "BAND"),
    (lambda: g.broadcast(np.ones(3), n), "allowed"),
    (lambda: g.all_reduce(np.ones(3), out=np.ones(4)), "same shape"),
    (lambda: g.reduce_scatter(np.ones(2 * n + 1)) if n > 1 else g.all_reduce(None), ""),
    (lambda: g.all_reduce_coalesced(np.ones(3)), "NumPy scalar (float64)"),
    (lambda: g.all_gather_coalesced([np.ones(3)], out=[]), "out has 0 entries; it needs one per array, 1"),
    (lambda: g.all_gather_coalesced([np.ones(3)], out=[np.ones((n, 2))]), "has 2 elements"),
    (lambda: g.reduce_scatter_coalesced([np.ones(n)], out=[np.ones(2)]), "out has 2 elements"),
    (lambda: g.barrier(timeout=0), "timeout"),
    (lambda: g.all_reduce(np.array(["text"])), "dtype"),
):
    try:
        wrong()
    except ValueError as error:
        assert text in str(error), (text, error)
    else:
        raise AssertionError("accepted: " + text)
assert (g.all_reduce(np.ones(2)) == n).all()
"""


@pytest.mark.parametrize("hosts", [[0], [0, 0], [0, 0, 0], [0, 1], [0, 0, 1, 1], [0, 1, 1]], ids=str)
def test_collectives(hosts: list[int], job: Callable[..., list[object]], finish: Callable[..., None]) -> None:
    finish(job(len(hosts), COLLECTIVES, hosts=hosts), 90)


NOTHING_IS_SENT = """
g = joined()
read_only = np.ones(3)
read_only.flags.writeable = False
for wrong, op in (
    (np.ones((4, 4))[:, ::2], smdp.SUM),
    (read_only, smdp.SUM),
    (np.array(["text"]), smdp.SUM),
    (np.ones(3, np.uint32), smdp.SUM),
    (np.ones(3), smdp.BAND),
    (np.ones(3), "sum"),
):
    fine = np.full(3, g.rank + 1)
    try:
        g.all_reduce_coalesced([fine, wrong], op)
    except ValueError as error:
        assert str(error).startswith("[smdp] "), error
    else:
        raise AssertionError(f"accepted: {wrong}")
    g.barrier()
    assert (fine == g.rank + 1).all(), wrong
for call in (
    lambda: g.all_gather_coalesced([np.ones(2), np.ones((4, 4))[:, ::2]]),
    lambda: g.reduce_scatter_coalesced([np.ones(2), np.ones(3)]),
    lambda: g.reduce_scatter_coalesced([np.ones(2, np.int64), np.ones(2)], smdp.BAND),
):
    try:
        call()
    except ValueError as error:
        assert str(error).startswith("[smdp] "), error
    else:
        raise AssertionError("accepted")
    g.barrier()
whole, into = np.ones(8), np.ones((2, 4))
halves = whole.reshape(2, 4)
for call, which in (
    (lambda: g.all_reduce_coalesced([whole[:5], np.ones(2), whole[3:]]), "arrays 0 and 2 share 16"),
    (lambda: g.all_reduce_coalesced([whole, whole]), "arrays 0 and 1 share 64"),
    (lambda: g.all_gather_coalesced([whole[:4], whole[:4]], out=[into, into]), "arrays 0 and 1 share 32"),
    (lambda: g.all_gather_coalesced([into[0], whole[:4]], out=[np.ones((2, 4)), into]), "arrays 0 and 1"),
    (lambda: g.all_gather_coalesced([np.ones(4), halves[1 - g.rank]], out=[None, whole]), "array 1 share 32"),
    (lambda: g.reduce_scatter_coalesced([whole, np.ones(8)], out=[None, whole[2:6]]), "arrays 0 and 1"),
):
    try:
        call()
    except ValueError as error:
        assert str(error).startswith("[smdp] ") and which in str(error), error
    else:
        raise AssertionError(f"accepted: {which}")
    g.barrier()
assert (whole == 1).all() and (into == 1).all()
own = into[0, 2 * g.rank :][:2]
same = g.all_gather_coalesced([whole[:2], whole[:2], own], out=[None, None, into[0]])
assert (into == 1).all() and all((one == 1).all() for one in same)
assert [a[0] for a in g.all_reduce_coalesced(np.ones(3) * i for i in range(2))] == [0, g.size]
"""


def test_coalesced_calls_check_all_arrays_before_they_send(
    job: Callable[..., list[object]], finish: Callable[..., None]
) -> None:
    finish(job(2, NOTHING_IS_SENT))


DEFINED = """
from smdp._buffers import DType
from smdp._reduce_op import check_defined

def is_refused(call):
    try:
        call()
    except ValueError as error:
        assert "is not defined on" in str(error), error
        return str(error).split(": ", 1)[1]

g = joined()
data = np.zeros(2)
for op in smdp.ReduceOp:
    for dtype in DType:
        ours = is_refused(lambda: check_defined(op, [dtype], "all_reduce"))
        pointer = data.ctypes.data
        core = is_refused(lambda: g.core.all_reduce(pointer, pointer, [1], dtype, op, 1.0, -1.0, False))
        assert (ours and ours.split(": ")[-1]) == (core and core.split(": ")[-1]), (op, dtype, ours, core)
"""


def test_what_a_reduction_is_defined_on_is_as_the_core_has_it(
    job: Callable[..., list[object]], finish: Callable[..., None]
) -> None:
    finish(job(1, DEFINED))


LET_GO = """
import weakref

def started(call=None):
    array = np.ones(1000)
    return (call or g.all_reduce)(array, async_op=True), weakref.ref(array)

g = joined()
g.barrier()
time.sleep(0.5 * g.rank)
handle, dropped = started()
del handle
assert g.rank == 1 or dropped() is not None  # the other one has not come
g.barrier()
assert dropped() is None, "a blocking call"
handle, waited = started()
handle.wait()
del handle
assert waited() is None, "wait()"
handle, asked = started()
while not handle.done():
    time.sleep(0.001)
del handle
assert asked() is None, "done()"
handle, source = started(g.all_gather)
assert (handle.wait() == 1).all() and source() is None, "an input that is no result"
assert (handle.wait() == 1).all() and handle.error() is None
handle, failed = started(lambda array, **more: g.recv(array, timeout=0.1, **more))
try:
    handle.wait()
except smdp.SmdpError:
    del handle
assert failed() is None, "an error"
"""


def test_arrays_are_kept_while_an_operation_runs_and_no_longer(
    job: Callable[..., list[object]], finish: Callable[..., None]
) -> None:
    finish(job(2, LET_GO))


WAIT_IN_ALL = """
g = joined()
g.barrier()
if g.rank == 0:
    handle = g.all_reduce_coalesced([np.ones(3) for _ in range(5)], async_op=True)
    start = time.monotonic()
    try:
        handle.wait(0.5)
        raise AssertionError("rank 1 has not come")
    except smdp.TimeoutError as error:
        gave_up = "[smdp] wait() gave up after 0.5 s; the operation is still running. Call wait() again, or"
        assert str(error) == gave_up + " with a longer timeout.", error
    took = time.monotonic() - start
    assert 0.5 <= took < 1.5, took
    assert not handle.done()
else:
    time.sleep(3)
    handle = g.all_reduce_coalesced([np.ones(3) for _ in range(5)], async_op=True)
assert all((array == 2).all() for array in handle.wait(30))
"""


def test_several_operations_have_one_limit_to_wait_for(
    job: Callable[..., list[object]], finish: Callable[..., None]
) -> None:
    finish(job(2, WAIT_IN_ALL))


GROUP_IN_FLIGHT = """
import gc, weakref
g = joined()
time.sleep(0.5 * g.rank)
handle = g.split(0).all_reduce(np.ones(3), async_op=True)
gc.collect()
assert (handle.wait() == 2).all()
part = g.split(0)
gone = weakref.ref(part)
handle = part.all_reduce(np.ones(3), async_op=True)
del part
assert (handle.wait() == 2).all() and gone() is None, "it goes with its last operation"
"""


def test_an_operation_keeps_its_group(job: Callable[..., list[object]], finish: Callable[..., None]) -> None:
    finish(job(2, GROUP_IN_FLIGHT))


ALGORITHMS = """
g = joined()
for count in (0, 1, 1000, 300_000):
    for dtype in (np.float64, np.float16):
        a = (np.arange(count) % 5 + g.rank).astype(dtype)
        total = (np.arange(count) % 5 * 3 + 3).astype(dtype)
        assert (g.all_reduce(a.copy()) == total).all()
        assert np.allclose(g.all_reduce(a.copy(), smdp.AVG), total / 3, rtol=1e-3)
        for root in range(3):
            reduced = g.reduce(a.copy(), root)
            assert reduced is None if g.rank != root else (reduced == total).all()
            sent = g.broadcast(a + root if g.rank == root else a.copy(), root)
            assert (sent == a - g.rank + 2 * root).all()
counted = smdp.stats()["operations"]
ran = {name: {row["algorithm"] for row in counted if row["operation"] == name} for name in NAMES}
assert ran == EXPECTED, ran
"""


@pytest.mark.parametrize(
    ("hosts", "algorithm", "expected", "is_idle"),
    [
        ([0, 0, 0], "one_shot", ["one_shot two_shot", "two_shot", "spread"], False),
        ([0, 0, 0], "two_shot", ["two_shot", "two_shot", "spread"], False),
        ([0, 0, 0], "ring", ["one_shot two_shot", "two_shot", "spread"], True),
        ([0, 0, 1], "two_shot", ["recursive_doubling direct", "tree", "tree"], True),
        ([0, 0, 1], "direct", ["direct", "tree", "tree"], False),
        ([0, 0, 1], "ring", ["ring", "tree", "tree"], False),
        ([0, 0, 1], "recursive_doubling", ["recursive_doubling", "tree", "tree"], False),
        ([0, 0, 1], "tree", ["tree", "tree", "tree"], False),
        ([0, 1, 2], "tree", ["tree", "tree", "tree"], False),
    ],
)
def test_algorithms_agree(
    hosts: list[int],
    algorithm: str,
    expected: list[str],
    is_idle: bool,
    job: Callable[..., list[object]],
    finish: Callable[..., None],
) -> None:
    names = ["all_reduce", "reduce", "broadcast"]
    ran = {name: set(one.split()) for name, one in zip(names, expected, strict=True)}
    ranks = job(
        3,
        ALGORITHMS.replace("NAMES", repr(names)).replace("EXPECTED", repr(ran)),
        hosts=hosts,
        environ={"SMDP_ALGORITHM": algorithm},
    )
    finish(ranks, 60)
    text = "".join(rank.output for rank in ranks)  # type: ignore[attr-defined]
    assert text.count(f"SMDP_ALGORITHM={algorithm} has no effect") == is_idle, text


def test_debug_log_names_the_algorithm(job: Callable[..., list[object]]) -> None:
    code = "g = joined(); [g.all_reduce(np.ones(n)) for n in (10, 10, 1_000_000)]"
    for rank in job(2, code, environ={"SMDP_LOG_LEVEL": "debug"}):
        assert rank.finish(60) == 0, rank.output  # type: ignore[attr-defined]
        text = rank.output  # type: ignore[attr-defined]
        assert text.count("all_reduce of 80 bytes between 2 ranks of this host: one_shot") == 1
        assert "all_reduce of 8000000 bytes between 2 ranks of this host: two_shot" in text


def test_a_list_may_change_while_its_arrays_are_in_flight(job: Callable[..., list[object]]) -> None:
    code = """
g = joined()
count = 1 << 20
for call in ("all_to_all", "reduce_scatter", "scatter"):
    blocks = [np.full(count, g.rank + 1.0) for _ in range(g.size)]
    g.barrier()
    if g.rank == 1:
        time.sleep(0.5)
    if call == "all_to_all":
        out, want = [np.zeros(count) for _ in range(g.size)], [1.0, 2.0]
        handle = g.all_to_all(blocks, out=out, async_op=True)
    elif call == "reduce_scatter":
        handle, want = g.reduce_scatter(blocks, async_op=True), [3.0]
    else:
        handle, want = g.scatter(blocks, out=np.zeros(count), async_op=True), [1.0]
    blocks.clear()
    others = [np.full(count, 99.0) for _ in range(4)]
    found = handle.wait()
    for got, value in zip(found if call == "all_to_all" else [found], want, strict=True):
        assert (got == value).all(), (call, got, value)
    del others
"""
    for rank in job(2, code):
        assert rank.finish(30) == 0, rank.output  # type: ignore[attr-defined]


@pytest.mark.parametrize("hosts", [[0, 0, 0], [0, 1, 1]], ids=str)
def test_same_bits_on_all_ranks_and_in_all_runs_under_load(
    hosts: list[int], job: Callable[..., list[object]]
) -> None:
    code = """
import hashlib
g = joined()
stop = os.fork() if g.rank == 0 else 0   # a busy neighbour
if g.rank == 0 and stop == 0:
    end = time.monotonic() + 60
    while time.monotonic() < end and os.getppid() != 1:
        pass
    os._exit(0)
digest = hashlib.sha256()
for i in range(30):
    a = (np.random.default_rng(100 * i + g.rank).standard_normal(10_000 + 997 * i)).astype(np.float32)
    digest.update(g.all_reduce(a).tobytes())
if stop:
    os.kill(stop, signal.SIGKILL)
print(digest.hexdigest())
"""
    seen = set()
    for _ in range(2):
        for rank in job(3, code, hosts=hosts):
            assert rank.finish(60) == 0, rank.output  # type: ignore[attr-defined]
            seen.add(rank.output)  # type: ignore[attr-defined]
    assert len(seen) == 1


def test_kernels_give_the_same_bits(job: Callable[..., list[object]]) -> None:
    code = """
import hashlib, ml_dtypes
g = joined()
digest = hashlib.sha256()
for dtype in (np.float16, ml_dtypes.bfloat16, np.float32):
    digest.update(g.all_reduce(np.random.default_rng(g.rank).standard_normal(5001).astype(dtype)).tobytes())
print(digest.hexdigest())
"""
    seen = set()
    for kernel in ("generic", "avx2"):
        for rank in job(2, code, environ={"SMDP_FORCE_KERNEL": kernel}):
            if rank.finish(60) != 0 and "SMDP_FORCE_KERNEL" in rank.output:  # type: ignore[attr-defined]
                pytest.skip("this CPU has no " + kernel)
            seen.add(rank.output)  # type: ignore[attr-defined]
    assert len(seen) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_more_than_four_gigabytes(job: Callable[..., list[object]], finish: Callable[..., None]) -> None:
    with open("/proc/meminfo") as file:
        free = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    if free < 11 << 20:
        pytest.skip(f"needs 11 GiB of free memory, there are {free >> 20}")
    code = """
g = joined(timeout=200)
a = np.full((1 << 32) + 5, g.rank + 1, np.uint8)
g.all_reduce(a)
assert (a[:1000] == 3).all() and (a[-1000:] == 3).all() and (a[:: 1 << 20] == 3).all()
"""
    finish(job(2, code), 250)


def test_a_sparse_sum_in_flight_holds_no_python_object(
    job: Callable[..., list[object]], finish: Callable[..., None]
) -> None:
    # A core thread that dropped one would take the GIL, which a destructor that waits for it may hold.
    code = """
from pathlib import Path
from smdp import _core
from smdp._buffers import DType
g = joined()
seen = Path(__file__).with_name("seen")
while g.rank == 1 and not seen.exists():
    time.sleep(0.01)
rows, values = np.array([g.rank]), np.ones((1, 2), np.float32)
sum = _core.SparseSum([4, 2], 1, int(DType.FLOAT32), rows.ctypes.data, values.ctypes.data, 1, True)
before = sys.getrefcount(sum)
handle = g._core.all_reduce_sparse(sum, 0, 1.0, 30.0, True)
assert sys.getrefcount(sum) == before
seen.touch()
handle.wait()
assert sum.count == 2
"""
    finish(job(2, code))
