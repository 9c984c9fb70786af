"""Detects pods of Kubeflow Trainer's TrainJob in which the script was started without torchrun."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from smdp import config
from smdp._errors import ConfigError
from smdp.environments.base import Environment, Launch, Ranks, make_launch, read_master_port, read_ranks
from smdp.environments.torch_port import smdp_port


class Kubeflow(Environment):
    """A TrainJob pod with PET_*, torchrun's options. Without torchrun, the script is one rank per pod.

    Under torchrun or mpirun, their variables take precedence.
    """

    name = "Kubeflow without torchrun"
    variables = (
        "PET_NNODES",
        "PET_NODE_RANK",
        "PET_NPROC_PER_NODE",
        "PET_MASTER_ADDR",
        "PET_MASTER_PORT",
    )
    master_hint = "start the script with torchrun, or set PET_MASTER_ADDR to the name of the first pod"

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Returns whether both the pod's number and the number of pods are set; one alone is a default."""
        needed = ("KUBERNETES_SERVICE_HOST", "PET_NNODES", "PET_NODE_RANK")
        return all(config.read(environ, name) for name in needed)

    @classmethod
    def why_not(cls, environ: Mapping[str, str]) -> str:
        """Returns an empty text, because explain() describes PET_* as options of torchrun."""
        return ""

    @classmethod
    def launch(cls, environ: Mapping[str, str]) -> Launch:
        """Returns a Launch with PET_NODE_RANK as the rank and PET_NNODES as the world size."""
        nodes = environ["PET_NNODES"].strip()
        if ":" in nodes:
            raise ConfigError(
                f"PET_NNODES={nodes!r} is a range, and only torchrun can determine the number of pods; "
                "start the script with torchrun (command: [torchrun]), or use a fixed number of pods"
            )
        ranks = read_ranks(environ, "PET_NODE_RANK", "PET_NNODES")
        size = config.read_int(environ, "SMDP_WORLD_SIZE", minimum=1)
        if size == 1:
            ranks = Ranks(0, 1, 0, 1)
        elif size not in (None, ranks.world_size):
            raise config.invalid(
                "SMDP_WORLD_SIZE", size, f"1; or {nodes}, since PET_NNODES={nodes} and torchrun is not used"
            )
        ranks = dataclasses.replace(ranks, local_rank=0, local_size=1)
        launch = make_launch(
            environ, ranks, cls.name, master_addr=config.read(environ, "PET_MASTER_ADDR") or ""
        )
        port = config.read_port(environ, "PET_MASTER_PORT")
        if ranks.world_size > 1 and port is not None and read_master_port(environ) is None:
            launch = dataclasses.replace(launch, master_port=min(smdp_port(port), 65535))
        return launch

    @classmethod
    def cost(cls, environ: Mapping[str, str]) -> str:
        """Returns a warning on rank 0 if PET_NPROC_PER_NODE asks for more than one rank per pod."""
        per_pod = config.read(environ, "PET_NPROC_PER_NODE") or "1"
        if per_pod == "1" or config.read(environ, "PET_NODE_RANK") != "0":
            return ""
        wanted = per_pod if per_pod.isdigit() else f"as many as there are cores or GPUs ({per_pod})"
        pods = environ["PET_NNODES"].strip()
        return (
            f"PET_NPROC_PER_NODE asks for {wanted} ranks per pod, but the script was started without "
            f"torchrun. There is one rank in each pod (PET_NNODES={pods}), and the cores or GPUs for the "
            "other ranks are idle; start it with torchrun (command: [torchrun], args: [<script>])"
        )
