"""The ops in Python, for a TensorFlow that does not take the op library, pass the same checks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from tensorflow_spawn import run
from test_tensorflow_collectives import (
    check_gradients,
    check_groups_and_forms,
    check_movements,
    check_reductions,
)
from test_tensorflow_tape import (
    check_compression,
    check_failing_op,
    check_order_through_calls,
    check_other_lists,
    check_shapes_of_use,
    check_training,
)

from smdp.tensorflow.library import is_keras_3

PYTHON = {"SMDP_TENSORFLOW_OPS": "python"}


@pytest.mark.parametrize(
    "check",
    [
        check_gradients,
        check_groups_and_forms,
        check_movements,
        check_order_through_calls,
        check_other_lists,
        check_reductions,
        check_shapes_of_use,
        check_training,
    ],
)
def test_same(check: Callable[[], None]) -> None:
    run(check, 2, env=PYTHON)


def test_compression() -> None:
    run(check_compression, 2, env=PYTHON, hosts=[0, 1])


def test_failing_op() -> None:
    run(check_failing_op, 2, env=PYTHON, exits={1: 1})


@pytest.mark.skipif(not is_keras_3, reason="needs Keras 3")
def test_fit() -> None:
    from test_tensorflow_keras import check_fit

    run(check_fit, 2, env=PYTHON)


REFUSED = """
import warnings
import tensorflow as tf

def refuse(path):
    raise tf.errors.NotFoundError(None, None, "undefined symbol: TF_Gone")

tf.load_op_library = refuse
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import smdp.tensorflow as sdp
(text,) = [str(w.message) for w in caught if "[smdp]" in str(w.message)]
assert "undefined symbol: TF_Gone" in text and "sent together after backward" in text, text
sdp.init()
assert sdp.allreduce(tf.constant([1.0, 2.0])).numpy().tolist() == [1.0, 2.0]
"""


def test_library_refused() -> None:
    subprocess.run([sys.executable, "-c", REFUSED], check=True, timeout=60)


UNTRIED = """
import warnings
import tensorflow as tf
tf.__version__ = "2.99.1"
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import smdp.tensorflow as sdp
(text,) = [str(one.message) for one in caught if "[smdp]" in str(one.message)]
assert "has been tried up to TensorFlow 2.21; this is 2.99.1" in text, text
sdp.init()
assert float(sdp.allreduce(2.0)) == 2.0
"""


def test_newer_than_what_was_tried() -> None:
    subprocess.run([sys.executable, "-c", UNTRIED], check=True, timeout=60)


def test_wrong_choice() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import smdp.tensorflow"],
        env={"SMDP_TENSORFLOW_OPS": "cuda", "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "SMDP_TENSORFLOW_OPS" in done.stderr and "native, python" in done.stderr
