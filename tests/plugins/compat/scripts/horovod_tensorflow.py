"""A script as users of horovod.tensorflow write it, with a tape."""

import horovod.tensorflow as hvd
import tensorflow as tf
from sklearn.datasets import load_digits

hvd.init()

digits = load_digits()
images, labels = digits.images[..., None].astype("float32") / 16, digits.target
dataset = tf.data.Dataset.from_tensor_slices((images[:1500], labels[:1500]))
dataset = dataset.repeat().shuffle(1500, seed=hvd.rank()).batch(64 // hvd.size())
model = tf.keras.Sequential(
    [tf.keras.layers.Flatten(), tf.keras.layers.Dense(128, activation="relu"), tf.keras.layers.Dense(10)]
)
loss = tf.losses.SparseCategoricalCrossentropy(from_logits=True)
opt = tf.optimizers.Adam(0.001 * hvd.size())


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        loss_value = loss(labels, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables(), root_rank=0)
    return loss_value


for batch, (x, y) in enumerate(dataset.take(600 // hvd.size())):
    training_step(x, y, batch == 0)
accuracy = tf.reduce_mean(tf.cast(model(images[1500:]).numpy().argmax(1) == labels[1500:], tf.float32))
accuracy = hvd.allreduce(accuracy, average=True)
for weight in model.trainable_variables:
    weights = hvd.allgather(tf.reshape(weight, [1, -1])).numpy()
    assert len(weights) == hvd.size() and (weights == weights[0]).all(), "the ranks' weights differ"
if hvd.rank() == 0:
    print(f"accuracy {float(accuracy):.3f} on {hvd.size()} ranks", flush=True)
