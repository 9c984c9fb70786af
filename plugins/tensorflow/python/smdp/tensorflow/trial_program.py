"""The program that the process of trial.py runs."""

from __future__ import annotations

import tensorflow as tf

import smdp.tensorflow as sdp


def main() -> None:
    """Uses every kind of op: with a callback, a forwarded input, in a graph, and in a tape's gradient."""
    sdp.init()
    variable = tf.Variable([1.0, 2.0, 3.0])
    optimizer = tf.keras.optimizers.SGD(0.5)

    def step() -> tf.Tensor:
        with sdp.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(variable * variable)
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
        return sdp.allreduce(loss)

    graph = tf.function(step)
    losses = [float(step()), float(graph()), float(graph())]
    gathered = sdp.allgather(tf.constant([[4, 5]])).numpy().tolist()
    sdp.barrier()
    if losses != [14.0, 0.0, 0.0] or gathered != [[4, 5]] or variable.numpy().any():
        raise SystemExit(f"wrong results: {losses}, {gathered}, {variable.numpy()}")
    sdp.shutdown()
