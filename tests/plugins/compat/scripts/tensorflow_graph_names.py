"""SMDDP's and Horovod's names for graphs of TensorFlow 1, and those that exist for XLA."""

import sys

import horovod.tensorflow as hvd
import numpy as np
import smdistributed.dataparallel.tensorflow as sdp
import tensorflow as tf

try:
    sdp.broadcast_global_variables(0)
except RuntimeError as error:
    assert "broadcast_variables" in str(error)
sdp.init()
assert hvd.is_initialized() and hvd.cross_size() == 1 and hvd.is_homogeneous()
assert sdp.overlap(tf.ones([2])).numpy().tolist() == [1, 1]
assert sdp.Compression.fp16 is sdp.FP16Compression
rank = sdp.rank()

with tf.Graph().as_default():
    w = tf.compat.v1.get_variable("w", initializer=tf.constant([1.0, 2.0]) * (rank + 1))
    # Many, of different shapes: a graph runs them in any order unless told.
    more = [tf.compat.v1.get_variable(f"x{i}", initializer=tf.ones([i + 1]) * rank) for i in range(30)]
    loss = tf.reduce_sum(w * (rank + 1.0))
    optimizer = sdp.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0))
    step = optimizer.minimize(loss)
    # What Horovod's says about how, not what; rows of an embedding stay rows until told.
    table = tf.compat.v1.get_variable("table", initializer=tf.zeros([3, 1]))
    rows = tf.reduce_sum(tf.gather(table, [rank, 2]))
    how = {"gradient_predivide_factor": 2.0, "num_groups": 3, "groups": [[table]]}
    found = []
    for options in ({"sparse_as_dense": False}, {"sparse_as_dense": True}, how):
        plain = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        with tf.control_dependencies(found):
            ((gradient, _),) = hvd.DistributedOptimizer(plain, **options).compute_gradients(rows, [table])
        assert isinstance(gradient, tf.IndexedSlices) == (not options.get("sparse_as_dense"))
        found.append(tf.convert_to_tensor(gradient))
    plain = sdp.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0), sparse_as_dense=False)
    with tf.control_dependencies(found):
        ((gradient, _),) = plain.compute_gradients(rows, [table])
    found.append(gradient)
    assert not isinstance(gradient, tf.IndexedSlices)
    mixed = hvd.grouped_allreduce(
        [
            part
            for i in range(8)
            for part in (tf.fill([i + 1], rank), tf.IndexedSlices(tf.ones([1, i + 1]), [rank]))
        ],
        op=hvd.Sum,
    )
    last = hvd.join()
    hook = hvd.BroadcastGlobalVariablesHook(1)
    with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
        np.testing.assert_allclose(session.run(w), [2, 4])
        for i, value in enumerate(session.run(more)):
            np.testing.assert_allclose(value, np.ones(i + 1))
        for i, value in enumerate(session.run(mixed)[::2]):
            np.testing.assert_allclose(value, np.ones(i + 1))
        assert session.run(last) == 1
        for gradient in session.run(found):
            np.testing.assert_allclose(gradient, [[0.5], [0.5], [1]])
        session.run(step)
        np.testing.assert_allclose(session.run(w), [0.5, 2.5])

try:
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    hvd.DistributedOptimizer(optimizer, None, False, "", "", hvd.Compression.none, False, 2)
except ValueError as error:
    assert "does not take backward_passes_per_step" in str(error)
else:
    sys.exit("more backwards must be refused")
for name in ("elastic", "no_such_name"):
    try:
        getattr(hvd, name)
    except NotImplementedError as error:
        assert name == "elastic" and "horovod.tensorflow.elastic is not supported" in str(error)
    except AttributeError as error:
        assert name == "no_such_name", error
    else:
        sys.exit(f"{name} must be refused")
sdp.shutdown()
if rank == 0:
    print("all is right on 2 ranks", flush=True)
