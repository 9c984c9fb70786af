"""How long reducers live: as the variables they are for; and what a step that breaks off leaves behind."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tensorflow_spawn import run

import smdp.tensorflow as sdp
from smdp.tensorflow import gradient_steps


def check_replaced_head() -> None:
    """Beside a body that stays; one rank keeps all heads, so that only the other's addresses come again."""
    body, kept, addresses = tf.Variable(tf.ones([3])), [], set()
    for count in range(1, 31):
        head = tf.Variable(tf.fill([2], float(count)))
        addresses.add(id(head))
        with tf.GradientTape() as tape:
            loss = (1 + sdp.rank()) * tf.reduce_sum(body) * tf.reduce_sum(head)
        gradients = sdp.DistributedGradientTape(tape).gradient(loss, [body, head])
        np.testing.assert_allclose(gradients[0], [3 * count] * 3)
        np.testing.assert_allclose(gradients[1], [4.5] * 2)
        if sdp.rank() == 1:
            kept.append(head)
        del head, tape, loss, gradients
    if sdp.rank() == 0:
        assert len(addresses) < 30, "no address came again: nothing was tested"
        assert len(gradient_steps._steps) == 0


def test_replaced_head() -> None:
    run(check_replaced_head, 2, env={"SMDP_TEST_TIMEOUT": "15"})
