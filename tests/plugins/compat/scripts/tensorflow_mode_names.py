"""What Horovod has beyond smdp.tensorflow gives the same in eager code, in a tf.function and in a graph."""

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

import smdp.tensorflow as sdp

v1 = tf.compat.v1
hvd.init()
rank = hvd.rank()

# By call, with what both ranks get.
CALLS = {
    "grouped_allgather": (
        lambda: hvd.grouped_allgather([tf.constant([rank]), tf.constant([rank + 5])]),
        [[0, 1], [5, 6]],
    ),
    "grouped_reducescatter": (
        lambda: hvd.grouped_reducescatter([tf.fill([2], rank + 1.0), tf.fill([2], 5.0)], op=hvd.Sum),
        [[3.0], [10.0]],
    ),
    "rank_op": (lambda: [hvd.rank_op()], [rank]),
    "size_op": (lambda: [hvd.size_op()], [2]),
    "local_rank_op": (lambda: [hvd.local_rank_op()], [rank]),
    "local_size_op": (lambda: [hvd.local_size_op()], [2]),
    "join": (lambda: [hvd.join()], [1]),
    "broadcast_object_fn": (lambda: hvd.broadcast_object_fn(1)(f"of {rank}"), "of 1"),
}
OF_VARIABLES = {"BroadcastGlobalVariablesHook", "broadcast_", "broadcast_global_variables"}
NOT_OF_TENSORS = {"Any", "Callable", "Sequence", "check_comm", "no_attribute", "sets_of"}
NOT_OF_TENSORS |= {"cross_rank", "cross_size", "gpu_available", "is_homogeneous", "mpi_threads_supported"}

more = {name for name in vars(hvd) if callable(getattr(hvd, name)) and not name.startswith("_")} - set(
    sdp.__all__
)
untold = {name for name in more - NOT_OF_TENSORS if not name.endswith(("_built", "_enabled"))}
assert untold == set(CALLS) | OF_VARIABLES, untold ^ (set(CALLS) | OF_VARIABLES)

for name, (call, expected) in CALLS.items():
    if "object" in name:
        assert call() == expected
        with tf.Graph().as_default():
            assert call() == expected
        continue
    results = [call(), tf.function(call, autograph=False)()]
    with tf.Graph().as_default(), v1.Session() as session:
        made = call()
        results += [session.run(made) for _ in range(20)]
    for result in results:
        for one, other in zip(result, expected):
            np.testing.assert_array_equal(one, other, err_msg=name)

for mode in (lambda function: function, tf.function):
    variables = [tf.Variable(rank), tf.Variable([rank + 1.0])]
    first, second = mode(lambda given=variables: hvd.broadcast_(given, 1))()
    assert first.numpy() == 1 and second.numpy() == [2.0]
with tf.Graph().as_default(), v1.Session() as session:
    variables = [v1.get_variable(name, initializer=tf.fill([2], float(rank))) for name in "ab"]
    both = hvd.broadcast_(variables, 1)
    from_rank_0 = hvd.broadcast_global_variables(0)
    session.run(v1.global_variables_initializer())
    np.testing.assert_array_equal(session.run(both), [[1.0, 1.0]] * 2)
    session.run([variable.assign([rank + 3.0, 0.0]) for variable in variables])
    session.run(from_rank_0)
    np.testing.assert_array_equal(session.run(variables), [[3.0, 0.0]] * 2)

hvd.shutdown()
if rank == 0:
    print("all is right on 2 ranks", flush=True)
