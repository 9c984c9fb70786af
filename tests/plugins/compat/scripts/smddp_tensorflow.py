"""A script as users of SMDDP for TensorFlow 2 write it."""

import smdistributed.dataparallel.tensorflow as sdp
import tensorflow as tf
from sklearn.datasets import load_digits

sdp.init()

gpus = tf.config.experimental.list_physical_devices("GPU")
if gpus:
    tf.config.experimental.set_visible_devices(gpus[sdp.local_rank()], "GPU")

digits = load_digits()
images, labels = digits.images[..., None].astype("float32") / 16, digits.target
dataset = tf.data.Dataset.from_tensor_slices((images[:1500], labels[:1500]))
dataset = dataset.repeat().shuffle(1500, seed=sdp.rank()).batch(64 // sdp.size())

model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10),
    ]
)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
opt = tf.keras.optimizers.Adam(1e-3 * sdp.size())


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        loss_value = loss_of(labels, model(images, training=True))
    tape = sdp.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    if first_batch:
        sdp.broadcast_variables(model.variables, root_rank=0)
        sdp.broadcast_variables(opt.variables(), root_rank=0)
    return sdp.oob_allreduce(loss_value)


for batch, (x, y) in enumerate(dataset.take(300 // sdp.size())):
    loss_value = training_step(x, y, batch == 0)

accuracy = float((model(images[1500:]).numpy().argmax(1) == labels[1500:]).mean())
own = tf.fill([3], float(sdp.rank()))
grad = sdp.allreduce(grad=own, param_index=0, num_params=1, compression=sdp.Compression.fp16)
assert grad.numpy().tolist() == [(sdp.size() - 1) / 2] * 3
for weight in model.trainable_variables:
    assert (sdp.oob_allreduce(weight).numpy() == weight.numpy()).all(), "the ranks' weights differ"
if sdp.rank() == 0:
    print(f"accuracy {accuracy:.3f} on {sdp.size()} ranks, loss {float(loss_value):.3f}", flush=True)
