"""Scripts for SMDDP and Horovod on TensorFlow, as their documentation has users write them, unchanged."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from launchers import check, pairs, start

tf = pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")


TORCHRUN = "torchrun" if find_spec("torch") else "torchrun's variables"
LAUNCHERS = ["smdp run", "mpirun", "mpirun and a variable", TORCHRUN]
SCRIPTS = ["smddp_tensorflow.py", "horovod_tensorflow.py", "horovod_keras.py"]


@pytest.mark.parametrize(("launcher", "script"), pairs(LAUNCHERS, SCRIPTS))
def test_script(launcher: str, script: str) -> None:
    if script == "horovod_keras.py" and str(getattr(tf.keras, "__version__", "2")).startswith("2"):
        pytest.skip("needs Keras 3")
    if "horovod" in script and find_spec("horovod") is not None:
        pytest.skip("Horovod itself is installed, and answers")
    check(launcher, script)


@pytest.mark.skipif(find_spec("horovod") is not None, reason="Horovod itself is installed, and answers")
@pytest.mark.parametrize(
    "script", ["tensorflow_graph_names.py", "tensorflow_keras_names.py", "tensorflow_mode_names.py"]
)
def test_names(script: str) -> None:
    if "keras" in script and str(getattr(tf.keras, "__version__", "2")).startswith("2"):
        pytest.skip("needs Keras 3")
    done = start("smdp run", script)
    assert done.returncode == 0, done.stderr[-6000:]
    assert "all is right on 2 ranks" in done.stdout
