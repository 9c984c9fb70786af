# needs: tensorflow
# ranks: 2
import tensorflow as tf

run(0, {})
if hasattr(tf.keras, "ops"):
    run(1, {})
else:
    skip(1, "needs Keras 3")
