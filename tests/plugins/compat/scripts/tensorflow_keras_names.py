"""horovod.keras and SMDDP's keras, as scripts import them, and a model that is loaded to be trained on."""

import sys
import tempfile
import types
from pathlib import Path

import horovod.keras as hvd
import horovod.tensorflow as tensorflow_hvd
import horovod.tensorflow.compression
import horovod.tensorflow.functions
import horovod.tensorflow.keras as longer
import horovod.tensorflow.mpi_ops as mpi_ops
import horovod.tensorflow.sync_batch_norm
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
first, second = tensorflow_hvd.grouped_allgather([x[:1], x[1:]], None, True, None)
assert first.numpy().tolist() == [1, 2] and second.numpy().tolist() == [2, 4, 4, 8]
first, second = tensorflow_hvd.grouped_reducescatter([x, x[:2]], op=tensorflow_hvd.Sum)
assert first.numpy().tolist() == ([3, 6] if rank == 0 else [12])
assert second.numpy().tolist() == ([3] if rank == 0 else [6])
# By position, as Horovod has them.
part = tensorflow_hvd.reducescatter(
    x[:2], "", tensorflow_hvd.Compression.none, None, "name", None, True, 2.0, 3.0
)
assert part.numpy().tolist() == [9 * (rank + 1)]
(total,) = tensorflow_hvd.grouped_allreduce(
    [x], False, "", "", hvd.Compression.none, None, 2.0, 3.0, None, True, "n"
)
assert total.numpy().tolist() == [18, 36, 72]
narrow = tf.constant([100, 100], tf.int8)  # of which the sum is too large
assert tensorflow_hvd.allreduce(narrow).numpy().tolist() == [100, 100]
assert tensorflow_hvd.reducescatter(narrow, op=tensorflow_hvd.Average).numpy().tolist() == [100]
# Keras' own have other names, and their second argument is one.
for module in (hvd, longer):
    assert module.allreduce(value=[2.0 * rank]).numpy() == 1
    assert module.allreduce([2.0 * rank], "name", False, 0.5).numpy() == 1
    assert module.allgather(value=[rank]).numpy().tolist() == [0, 1]
    assert module.broadcast(value=[rank], root_rank=1).numpy() == 1
    assert module.reducescatter(x[:2], "name", op=tensorflow_hvd.Sum).numpy() == 3 * (rank + 1)
functions, batch_norm = horovod.tensorflow.functions, horovod.tensorflow.sync_batch_norm
assert functions.broadcast_variables is tensorflow_hvd.broadcast_variables
assert functions.broadcast_object(rank, 1) == 1 and functions.allgather_object(rank) == [0, 1]
assert functions.broadcast_object_fn(1)(rank) == 1
assert horovod.tensorflow.compression.Compression is hvd.Compression
assert horovod.tensorflow.compression.FP16Compressor is hvd.Compression.fp16


class Doubles(horovod.tensorflow.compression.Compressor):
    @staticmethod
    def compress(tensor):
        return tf.cast(tensor, tf.float64), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tf.cast(tensor, ctx)


assert tensorflow_hvd.allreduce(tf.constant([1.0 + 2 * rank]), compression=Doubles).numpy().tolist() == [2]
everybody = tensorflow_hvd.global_process_set
assert hvd.global_process_set is longer.global_process_set is everybody
assert tensorflow_hvd.allreduce(x, process_set=everybody).numpy().tolist() == [1.5, 3, 6]
assert tensorflow_hvd.barrier(everybody) is None and int(tensorflow_hvd.size_op(0)) == 2
metric = tf.keras.metrics.Mean()
metric.update_state(3.0)
metric.reset_states()
assert metric.result() == 0 and float(tf.keras.optimizers.Adadelta(lr=0.25).learning_rate) == 0.25
assert batch_norm.SyncBatchNormalization is tensorflow_hvd.SyncBatchNormalization

v = tf.Variable([float(rank)])
assert tensorflow_hvd.broadcast_([v], 1)[0].numpy() == v.numpy() == 1 == int(tensorflow_hvd.join())
assert tensorflow_hvd.broadcast_object_fn(root_rank=1)(rank) == 1
assert tensorflow_hvd.gpu_available("tensorflow") == bool(tf.config.list_physical_devices("GPU"))
assert mpi_ops.size() == 2
for name in ("start_timeline", "ProcessSet", "PartialDistributedGradientTape"):
    assert not hasattr(tensorflow_hvd, name)
    try:
        exec(f"from horovod.tensorflow import {name}")
    except ImportError as error:
        assert f"horovod.tensorflow.{name} is not supported: " in str(error), error
    else:
        sys.exit(f"{name} must fail")

# Saved where smdp is not, loaded on two ranks: from there on gradients are averaged.
model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1, kernel_initializer="ones")])
model.compile(tf.keras.optimizers.SGD(0.5), "mse")
with tempfile.TemporaryDirectory() as folder:
    path = str(Path(folder) / "model.keras")
    model.save(path)
    model = hvd.load_model(path)
    weights = str(Path(folder) / "weights.keras")
    tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1)]).save(weights)
    assert getattr(hvd.load_model(weights), "optimizer", None) is None
model.optimizer.apply([tf.fill([2, 1], float(rank)), tf.zeros([1])], model.trainable_variables)
np.testing.assert_allclose(model.trainable_variables[0].numpy(), [[0.75], [0.75]])


def own_classes():
    class Downhill(tf.keras.optimizers.SGD):
        pass

    class Scaled(tf.keras.layers.Dense):
        pass

    return Downhill, Scaled


Downhill, Scaled = own_classes()
model = tf.keras.Sequential([tf.keras.Input([2]), Scaled(1)])
model.compile(Downhill(0.5), "mse")
with tempfile.TemporaryDirectory() as folder:
    path = str(Path(folder) / "model.keras")
    model.save(path)
    model = longer.load_model(path, [Downhill], {"Scaled": Scaled}, hvd.Compression.fp16, legacy_opts=False)
assert isinstance(model.optimizer, Downhill) and isinstance(model.layers[0], Scaled)

# Gradients of embeddings are dense with SMDDP, whatever it is told, and slices with Horovod until told.
table = tf.Variable(tf.zeros([3, 1]))
for make, options, is_sparse in (
    (sdp.DistributedGradientTape, {}, False),
    (sdp.DistributedGradientTape, {"sparse_as_dense": False}, False),
    (tensorflow_hvd.DistributedGradientTape, {}, True),
    (tensorflow_hvd.DistributedGradientTape, {"sparse_as_dense": True}, False),
):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [rank, 2]))
    gradient = make(tape, "", "", **options).gradient(loss, table)
    assert isinstance(gradient, tf.IndexedSlices) == is_sparse
    assert tf.convert_to_tensor(gradient).numpy().tolist() == [[0.5], [0.5], [1]]
for module in (sdp, sdp_keras):
    optimizer = module.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))
    slices = tf.IndexedSlices(tf.ones([1, 1]), [rank], [3, 1])
    (seen,) = optimizer._smdp_reduction([slices], [table])
    assert seen.numpy().tolist() == [[0.5], [0.5], [0]]
# Horovod's orders of arguments, and SMDDP's.
fp16, plain = hvd.Compression.fp16, tf.keras.optimizers.SGD
for make, order in (
    (hvd.DistributedOptimizer, (None, "", "", fp16, True, 1.0, tensorflow_hvd.Sum)),
    (longer.DistributedOptimizer, (None, "", "", fp16, True, 2.0, tensorflow_hvd.Sum)),
    (tensorflow_hvd.DistributedOptimizer, (None, False, "", "", fp16, True, 1, tensorflow_hvd.Sum)),
    (sdp.DistributedOptimizer, (None, False, "", "", fp16, False, sdp.ReduceOp.SUM, 5)),
    (sdp_keras.DistributedOptimizer, (None, False, "", "", fp16, False, sdp.ReduceOp.SUM, 5)),
):
    reduction = make(plain(1.0), *order)._smdp_reduction
    assert (reduction._compression.name, reduction._op.name) == ("fp16", "SUM"), order
    assert reduction._sparse_as_dense


def refused(call, error, text):
    try:
        call()
    except error as raised:
        assert text in str(raised), str(raised)
    else:
        sys.exit(f"not refused: {text}")


# mpi4py's ranks, if MPI has started them.
for size in (1, 2):
    world = types.SimpleNamespace(Get_size=lambda: size)  # noqa: B023
    sys.modules["mpi4py"] = types.SimpleNamespace(MPI=types.SimpleNamespace(COMM_WORLD=world))
    if size == 1:
        refused(sdp.get_worker_comm, RuntimeError, "get_worker_comm(): MPI has 1 ranks, smdp 2")
assert sdp.get_worker_comm() is world
del sys.modules["mpi4py"]

more = (None, False, "", "", fp16, True, 2)
refused(
    lambda: tensorflow_hvd.DistributedOptimizer(plain(1.0), *more),
    ValueError,
    "backward_passes_per_step is 2",
)
refused(lambda: hvd.init(comm=[0]), ValueError, "comm is [0]; allowed: all 2 ranks")
refused(lambda: hvd.elastic, NotImplementedError, "horovod.keras.elastic is not supported")
refused(lambda: __import__("horovod.keras.elastic"), ImportError, "torchrun --max-restarts")
refused(lambda: __import__("horovod.common.elastic"), ImportError, "horovod.common.elastic is not")
refused(lambda: longer.elastic, NotImplementedError, "horovod.tensorflow.keras.elastic is not supported")
refused(lambda: tensorflow_hvd.Adasum, AttributeError, "Adasum is not supported")
refused(lambda: hvd.no_such_name, AttributeError, "horovod.keras has no 'no_such_name'")
assert not hasattr(hvd, "elastic")
if rank == 0:
    print("all is right on 2 ranks", flush=True)
