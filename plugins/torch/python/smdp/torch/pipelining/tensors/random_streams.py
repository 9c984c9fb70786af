"""Random numbers that depend on seed, step, microbatch and place in the program, but not on the stages."""

from __future__ import annotations

import hashlib

import torch

# Torch functions that draw random numbers. Used for functions on no stage's value, which are not predicted.
DRAWING = frozenset(
    [
        "alpha_dropout",
        "bernoulli",
        "bernoulli_",
        "cauchy_",
        "dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "dropout_",
        "exponential_",
        "feature_alpha_dropout",
        "feature_dropout",
        "geometric_",
        "gumbel_softmax",
        "log_normal_",
        "multinomial",
        "normal",
        "normal_",
        "poisson",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "random_",
        "randperm",
        "rrelu",
        "uniform_",
    ]
)


class RandomStream:
    """Seeds the random generators for the operations of one microbatch.

    Args:
        seed: Seed of the training, the same on all ranks.
        step: Index of the step.
        microbatch: Index within the step, over all data-parallel replicas.
    """

    def __init__(self, seed: int, step: int, microbatch: int) -> None:
        self._prefix = f"{seed},{step},{microbatch},"

    def start(self, name: str) -> None:
        """Seeds torch's generators for the operation of this name."""
        digest = hashlib.blake2b((self._prefix + name).encode(), digest_size=8).digest()
        seed = int.from_bytes(digest, "little") >> 1
        # torch.manual_seed() takes half a millisecond, because it records a stack trace for unused devices.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)


class KeptState:
    """Restores torch's generators when the context ends."""

    def __enter__(self) -> None:
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def __exit__(self, *error: object) -> None:
        torch.set_rng_state(self._cpu)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
