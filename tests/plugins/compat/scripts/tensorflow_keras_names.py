"""horovod.keras and SMDDP's keras, as scripts import them, and a model that is loaded to be trained on."""

import sys
import tempfile
from pathlib import Path

import horovod.keras as hvd
import horovod.tensorflow as tensorflow_hvd
import horovod.tensorflow.keras as longer
import horovod.tensorflow.mpi_ops as mpi_ops
import numpy as np
import smdistributed.dataparallel.tensorflow as sdp
import smdistributed.dataparallel.tensorflow.keras as sdp_keras
import tensorflow as tf
from smdistributed.dataparallel.tensorflow.keras import callbacks

hvd.init(comm=[0, 1], process_sets="dynamic")
rank = hvd.rank()
assert (hvd.size(), hvd.local_rank(), longer.rank(), sdp.rank()) == (2, rank, rank, rank)
assert callbacks is sdp_keras.callbacks and sdp.keras is sdp_keras
assert hvd.callbacks.MetricAverageCallback is callbacks.MetricAverageCallback
assert (int(tensorflow_hvd.local_rank_op()), int(tensorflow_hvd.local_size_op())) == (rank, 2)

x = tf.constant([1.0, 2.0, 4.0]) * (rank + 1)
first, second = tensorflow_hvd.grouped_allgather([x[:1], x[1:]])
assert first.numpy().tolist() == [1, 2] and second.numpy().tolist() == [2, 4, 4, 8]
first, second = tensorflow_hvd.grouped_reducescatter([x, x[:2]], op=tensorflow_hvd.Sum)
assert first.numpy().tolist() == ([3, 6] if rank == 0 else [12])
assert second.numpy().tolist() == ([3] if rank == 0 else [6])

v = tf.Variable([float(rank)])
assert tensorflow_hvd.broadcast_([v], 1)[0].numpy() == v.numpy() == 1 == int(tensorflow_hvd.join())
assert tensorflow_hvd.broadcast_object_fn(root_rank=1)(rank) == 1
assert tensorflow_hvd.gpu_available("tensorflow") == bool(tf.config.list_physical_devices("GPU"))
assert mpi_ops.size() == 2
for name in ("start_timeline", "ProcessSet", "PartialDistributedGradientTape"):
    assert not hasattr(tensorflow_hvd, name)

# Saved where smdp is not, loaded on two ranks: from there on gradients are averaged.
model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1, kernel_initializer="ones")])
model.compile(tf.keras.optimizers.SGD(0.5), "mse")
with tempfile.TemporaryDirectory() as folder:
    path = str(Path(folder) / "model.keras")
    model.save(path)
    model = hvd.load_model(path)
model.optimizer.apply([tf.fill([2, 1], float(rank)), tf.zeros([1])], model.trainable_variables)
np.testing.assert_allclose(model.trainable_variables[0].numpy(), [[0.75], [0.75]])


def refused(call, error, text):
    try:
        call()
    except error as raised:
        assert text in str(raised), str(raised)
    else:
        sys.exit(f"not refused: {text}")


refused(lambda: hvd.init(comm=[0]), ValueError, "comm is [0]; allowed: all 2 ranks")
refused(lambda: hvd.elastic, NotImplementedError, "horovod.keras.elastic is not there")
refused(lambda: __import__("horovod.keras.elastic"), NotImplementedError, "torchrun --max-restarts")
refused(lambda: longer.elastic, NotImplementedError, "horovod.tensorflow.keras.elastic is not there")
refused(lambda: tensorflow_hvd.Adasum, AttributeError, "Adasum is not there")
refused(lambda: hvd.no_such_name, AttributeError, "horovod.keras has no 'no_such_name'")
assert not hasattr(hvd, "elastic")
if rank == 0:
    print("all is right on 2 ranks", flush=True)
