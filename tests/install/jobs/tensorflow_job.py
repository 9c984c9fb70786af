"""Two ranks take the mean of gradients by the op library of the wheel, which nothing compiled here."""

from __future__ import annotations

import tensorflow as tf

import smdp.tensorflow as sdp
from smdp.tensorflow import library

sdp.init()
variable = tf.Variable([1.0, 2.0])
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(variable * (sdp.rank() + 1.0))
gradient = sdp.DistributedGradientTape(tape).gradient(loss, [variable])[0]
assert gradient.numpy().tolist() == [1.5, 1.5], gradient
assert library.is_native, "the op library was not loaded"
sdp.shutdown()
print("the result is right", flush=True)
