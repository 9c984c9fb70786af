"""A script as users of horovod.tensorflow.keras write it."""

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from sklearn.datasets import load_digits

hvd.init()

digits = load_digits()
images, labels = digits.images[..., None].astype("float32") / 16, digits.target
model = tf.keras.Sequential(
    [tf.keras.layers.Flatten(), tf.keras.layers.Dense(128, activation="relu"), tf.keras.layers.Dense(10)]
)
opt = hvd.DistributedOptimizer(
    tf.keras.optimizers.Adam(0.001 * hvd.size()),
    backward_passes_per_step=1,
    average_aggregated_gradients=True,
)
model.compile(
    optimizer=opt,
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
    experimental_run_tf_function=False,
)
model.fit(
    images[hvd.rank() : 1500 : hvd.size()],
    labels[hvd.rank() : 1500 : hvd.size()],
    batch_size=64 // hvd.size(),
    epochs=20,
    verbose=0,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(0.001 * hvd.size(), warmup_epochs=2, verbose=0),
    ],
)
accuracy = model.evaluate(images[1500:], labels[1500:], verbose=0)[1]
for weight in model.trainable_variables:
    weights = hvd.allgather(tf.reshape(weight, [1, -1])).numpy()
    assert len(weights) == hvd.size() and (weights == weights[0]).all(), "the ranks' weights differ"
if hvd.rank() == 0:
    print(f"accuracy {accuracy:.3f} on {hvd.size()} ranks", flush=True)
