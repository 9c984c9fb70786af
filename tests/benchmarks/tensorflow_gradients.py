"""A step's gradients through the tape of smdp, Horovod or MultiWorkerMirroredStrategy, in turn.

    python tests/benchmarks/tensorflow_gradients.py -n 2 --against horovod-mpi,horovod-gloo

Every contender is a process per rank that makes 96 distinct gradients (75.7 MB) or 192 (2.4 MB) in a
tf.function, one multiplication each, and reduces them. Printed: median of the rounds' medians, and the ratio
to smdp.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

LAYER = [(512, 512)] * 4 + [(512,)] * 4 + [(512, 2048), (2048,), (2048, 512), (512,)] + [(512,)] * 4
MODELS = {"transformer": LAYER * 6, "small": [(3125,)] * 192}
STEPS = {
    "transformer": 100,
    "small": 600,
}  # seconds, as a machine's slow moments take


def worker(contender: str, model: str, steps: int) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import numpy as np
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = None
    if contender == "smdp":
        import smdp.tensorflow as library
    elif contender == "mirrored":
        options = tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        )
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    else:
        import horovod.tensorflow as library
    if strategy is None:
        library.init()
        rank = library.rank()
    variables = [
        tf.Variable(np.random.default_rng(i).normal(size=shape).astype("float32"), name=f"v{i}")
        for i, shape in enumerate(MODELS[model])
    ]

    def part(variable: tf.Variable, scale: tf.Tensor) -> tf.Tensor:
        # One multiplication: distinct, so nothing is merged, and not constant, so nothing is folded.
        @tf.custom_gradient
        def first(x):
            return tf.reshape(x, [-1])[0], lambda upstream: x * (scale * upstream)

        return first(variable.read_value())

    def gradients_of(scale: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.add_n([part(variable, scale) for variable in variables])
        if strategy is None:
            tape = library.DistributedGradientTape(tape)
        return tape.gradient(loss, variables)

    @tf.function
    def step(scale: tf.Tensor) -> tf.Tensor:
        if strategy is None:
            reduced = gradients_of(scale)
        else:

            def replica() -> list[tf.Tensor]:
                context = tf.distribute.get_replica_context()
                return context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients_of(scale))

            reduced = strategy.experimental_local_results(strategy.run(replica))[0]
        return tf.add_n([tf.reshape(gradient, [-1])[0] for gradient in reduced])

    scale = tf.constant(1.0 + rank)
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        float(step(scale))
        times.append(time.perf_counter() - start)
    if rank == 0:
        print(f"milliseconds: {1e3 * statistics.median(times[steps // 5 :])}", flush=True)


def launch(contender: str, size: int, model: str, steps: int) -> float:
    own = [sys.executable, __file__, "--worker", contender, "--model", model, "--steps", str(steps)]
    variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    if contender == "smdp":
        # As mpirun does by itself for two ranks that have cores.
        bound = ["--bind-to", "core"] if size <= len(os.sched_getaffinity(0)) else []
        commands = [[sys.executable, "-m", "smdp", "run", "-n", str(size), *bound, *own[1:]]]
    elif contender == "horovod-mpi":
        commands = [["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(size), *own]]
    elif contender == "horovod-gloo":
        commands = [
            [os.path.join(os.path.dirname(sys.executable), "horovodrun"), "--gloo", "-np", str(size), *own]
        ]
    else:
        commands = [own] * size
    ports = []
    for _ in commands:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    processes = []
    for index, command in enumerate(commands):
        if contender == "mirrored":
            cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
            variables = {
                **variables,
                "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}),
            }
        processes.append(
            subprocess.Popen(
                command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    outputs = [process.communicate(timeout=300) for process in processes]
    for output, _ in outputs:
        if "milliseconds: " in output:
            return float(output.split("milliseconds: ")[1].split()[0])
    raise RuntimeError(f"{contender} failed:\n{outputs}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=2, help="ranks")
    parser.add_argument("--model", choices=MODELS, default="transformer")
    parser.add_argument("--steps", type=int, help=f"default: {STEPS}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", default="", help="horovod-mpi, horovod-gloo, mirrored; comma-separated")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.model, options.steps)
        return
    steps = options.steps or STEPS[options.model]
    contenders = ["smdp", *filter(None, options.against.split(","))]
    times: dict[str, list[float]] = {contender: [] for contender in contenders}
    for _ in range(options.rounds):
        for contender in contenders:
            times[contender].append(launch(contender, options.n, options.model, steps))
    ours = statistics.median(times["smdp"])
    print(f"{options.model}, {options.n} ranks")
    for contender, values in times.items():
        middle = statistics.median(values)
        print(
            f"  {contender:14s} {middle:8.2f} ms ({min(values):.1f}-{max(values):.1f}) {middle / ours:.2f}x"
        )


if __name__ == "__main__":
    main()
