"""Every operation on every dtype that has it, also of nothing and of no dimension, against NumPy."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_spawn import run
from test_tensorflow_collectives import same, value, values

import smdp.tensorflow as sdp
from smdp.tensorflow.groups import DTYPES

SHAPES = [(), (0,), (3, 0, 2), (5, 3)]
ORDERED = [dtype for dtype in DTYPES if "complex" not in dtype]


def mean(parts: list[np.ndarray]) -> np.ndarray:
    wide = "complex128" if np.iscomplexobj(parts[0]) else "float64"
    total = np.sum([part.astype(wide) for part in parts], axis=0)
    return total / len(parts)  # that of integers is cut off when it is compared


def check_reductions() -> None:
    for dtype in DTYPES:
        numpy = {
            sdp.ReduceOp.AVERAGE: mean,
            sdp.ReduceOp.PRODUCT: functools.partial(functools.reduce, np.multiply),
            sdp.ReduceOp.MIN: functools.partial(functools.reduce, np.minimum),
            sdp.ReduceOp.MAX: functools.partial(functools.reduce, np.maximum),
        }
        for op, expected in numpy.items():
            if op in (sdp.ReduceOp.MIN, sdp.ReduceOp.MAX) and dtype not in ORDERED:
                with pytest.raises(
                    tf.errors.InvalidArgumentError, match=f"{op.name} is not defined on {dtype}"
                ):
                    sdp.allreduce(tf.ones([2], dtype), op=op)
                continue
            if op is sdp.ReduceOp.AVERAGE and dtype == "bool":
                continue
            for shape in SHAPES:
                got = sdp.allreduce(tf.constant(value(sdp.rank(), shape, dtype)), op=op)
                same(got, expected(values(shape, dtype)))


def check_parts() -> None:
    rank, size = sdp.rank(), sdp.size()
    for dtype in DTYPES:
        for rows in (0, size, 2 * size + 1):
            parts = values((rows, 3), dtype)
            if dtype != "bool":
                total = functools.reduce(np.add, parts)
                got = sdp.reducescatter(tf.constant(parts[rank]), op=sdp.ReduceOp.SUM)
                same(got, np.array_split(total, size)[rank])
            if rows % size == 0:
                sent = [np.split(part, size)[rank] for part in parts]
                same(sdp.alltoall(tf.constant(parts[rank])), np.concatenate(sent))


LAYOUTS = [[0, 0], [0, 1], pytest.param([0, 0, 1, 1], marks=pytest.mark.slow)]


@pytest.mark.parametrize("hosts", LAYOUTS, ids=str)
def test_reductions(hosts: list[int]) -> None:
    run(check_reductions, len(hosts), hosts=hosts)


@pytest.mark.parametrize("hosts", LAYOUTS, ids=str)
def test_parts(hosts: list[int]) -> None:
    run(check_parts, len(hosts), hosts=hosts)
