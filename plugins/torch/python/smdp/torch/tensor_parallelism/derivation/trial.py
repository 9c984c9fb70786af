"""Compares a divided module with the whole one, on a small random input, in float64 in one process."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from smdp.torch.mesh.cuts import cut_of
from smdp.torch.tensor_parallelism.actions.action import Action
from smdp.torch.tensor_parallelism.derivation.simulation import SimulatedAxis, on_simulated_ranks

Inputs: TypeAlias = "tuple[Tensor | None, ...]"

# Relative to the largest element. Sums in another order differ by 1e-15, or by 1e-7 where a module computes
# in float32; a wrong division of random weights differs in the first digits.
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Outcome:
    """What a trial has found.

    Attributes:
        problem: Why the division is wrong, or None.
        ran: Whether the divided module returned results.
        partial: Whole modules of whose gradients each rank computes a part, so that they must be summed.
    """

    problem: str | None
    ran: bool = True
    partial: tuple[str, ...] = ()


@dataclass
class _Run:
    """The results of one rank: outputs and gradients in one mode of the module."""

    outputs: list[Tensor]
    gradients: dict[str, Tensor]
    module: nn.Module


class Trial:
    """A module with random weights and a random input that it accepts.

    Args:
        module: The module. It stays as it is.
        widths: Possible numbers of features of the input, the likely ones first.

    Raises:
        ValueError: The module accepts none of the inputs that are tried. The message is the first error.
    """

    def __init__(self, module: nn.Module, widths: Sequence[int]) -> None:
        self._module = _with_random_values(module)
        problem = None
        self._inputs: Inputs = ()
        for inputs in itertools.chain.from_iterable(_inputs_of(self._module, width) for width in widths):
            self._inputs = inputs
            try:
                self._expected = [self._run_alone(mode) for mode in _MODES]
            except Exception as error:  # noqa: BLE001 - any error of the module's own code
                problem = problem or str(error).split("\n")[0][:100]
            else:
                return
        raise ValueError(problem or "it takes no tensor")

    def outcome(self, actions: Mapping[str, Action], size: int) -> Outcome:
        """Returns whether the divided module computes what the whole one does, in training and evaluation.

        Args:
            actions: What happens to the modules in this one, by their names in it.
            size: The number of ranks.
        """
        for mode, expected in zip(_MODES, self._expected, strict=True):
            run = functools.partial(self._run, mode, actions)
            try:
                ranks = on_simulated_ranks(size, run)
            except Exception as error:  # noqa: BLE001 - any error of the module's own code
                return Outcome(str(error).split("\n")[0][:100] or type(error).__name__, ran=False)
            found = _compared(expected, ranks)
            if found.problem is not None or found.partial:
                return found
        return Outcome(None)

    def _run_alone(self, mode: _Mode) -> _Run:
        (found,) = on_simulated_ranks(1, functools.partial(self._run, mode, {}))
        return found

    def _run(self, mode: _Mode, actions: Mapping[str, Action], axis: SimulatedAxis) -> _Run:
        # Copies share the memory of the weights, which actions replace and do not write.
        shared = {id(each): nn.Parameter(each.detach()) for each in self._module.parameters()}
        module: nn.Module = copy.deepcopy(self._module, dict(shared))
        module.train(mode.trains)
        with torch.no_grad():
            for name, action in actions.items():
                action.apply(module.get_submodule(name), axis)
        leaves = [
            each.detach().requires_grad_() if each is not None and each.is_floating_point() else each
            for each in self._inputs
        ]
        with torch.set_grad_enabled(mode.has_gradients), _OwnRandomNumbers():
            result = module(*leaves)
        outputs = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
        outputs = [each for each in outputs if each.is_floating_point()]
        if not outputs:
            raise ValueError("it returns no tensor")
        gradients: dict[str, Tensor] = {}
        if mode.has_gradients:
            _loss_of(outputs).backward()
            named = {
                **dict(module.named_parameters()),
                **{f"input {place}": each for place, each in enumerate(leaves) if each is not None},
            }
            gradients = {name: each.grad for name, each in named.items() if each.grad is not None}
        return _Run([each.detach() for each in outputs], gradients, module)


@dataclass(frozen=True)
class _Mode:
    trains: bool
    has_gradients: bool


# Evaluation without gradients has code of its own in some modules, such as torch's TransformerEncoderLayer.
_MODES = (_Mode(False, False), _Mode(False, True), _Mode(True, True))


class _OwnRandomNumbers(TorchDispatchMode):
    """Draws random numbers from a state of this thread, so that each rank draws the same ones."""

    _lock = threading.Lock()

    def __init__(self) -> None:
        super().__init__()
        self._state = torch.Generator().manual_seed(1).get_state()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        # Not all functions take a generator, so each thread in turn has the default one.
        with self._lock, torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._state)
            found = func(*args, **(kwargs or {}))
            self._state = torch.get_rng_state()
        return found


def _with_random_values(module: nn.Module) -> nn.Module:
    """Returns a copy in float64 on the CPU. Its weights are random, because zeros would hide differences."""
    made = copy.deepcopy(module)
    if any(buffer.is_meta for buffer in made.buffers()):
        raise ValueError("its buffers have no values yet")
    if any(parameter.is_meta for parameter in made.parameters()):
        buffers = {id(buffer): buffer for buffer in made.buffers()}
        made._apply(lambda each: each if id(each) in buffers else torch.empty_like(each, device="cpu"))
    made = made.to("cpu").double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=generator)
            else:
                parameter.uniform_(0.5, 1.5, generator=generator)
            parameter.requires_grad_()
    return made


def _inputs_of(module: nn.Module, width: int) -> Iterator[Inputs]:
    """Yields inputs that a module may accept: (2, 5, width) for each argument without a default."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = sum(each.kind in kinds and each.default is inspect.Parameter.empty for each in parameters)
    # Sequential has named parameters as well; a forward(*args, **kwargs) passes on what it gets.
    needed = needed or int(any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters))
    if needed == 0:
        return
    generator = torch.Generator().manual_seed(2)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    yield tuple(random(2, 5, width) for _ in range(needed))
    if needed > 1:
        yield (random(2, 5, width), *[None] * (needed - 1))
    yield tuple(random(2, width) for _ in range(needed))
    sizes = [each.num_embeddings for each in module.modules() if isinstance(each, nn.Embedding)]
    if sizes:
        tokens = torch.randint(min(sizes), (2, min(5, *sizes)), generator=generator)
        yield (tokens, *[None] * (needed - 1))


def _loss_of(outputs: Sequence[Tensor]) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    weights = [torch.randn(each.shape, generator=generator, dtype=torch.float64) for each in outputs]
    losses = [(weight * each).sum() for weight, each in zip(weights, outputs, strict=True)]
    return torch.stack([loss for loss in losses if loss.requires_grad]).sum()


def _compared(expected: _Run, ranks: Sequence[_Run]) -> Outcome:
    """Compares each rank with the whole module."""
    for run in ranks:
        if len(run.outputs) != len(expected.outputs):
            return Outcome("it returns another number of tensors")
        for found, one in zip(run.outputs, expected.outputs, strict=True):
            if found.shape != one.shape:
                return Outcome(f"it returns {tuple(found.shape)} instead of {tuple(one.shape)}")
            if not _is_close(found, one):
                return Outcome(f"its results differ by {(found - one).abs().max().item():.1e}")
    partial: list[str] = []
    for name, gradient in expected.gradients.items():
        parts = [run.gradients[name] for run in ranks if name in run.gradients]
        if len(parts) < len(ranks):
            return Outcome(f"a rank has no gradient of {name}")
        owns = [_own_part(run.module, name, gradient) for run in ranks]
        if all(_is_close(part, own) for part, own in zip(parts, owns, strict=True)):
            continue
        is_whole = all(own is gradient for own in owns)
        total = torch.stack(parts).sum(0) if is_whole else None
        if name.startswith("input ") or total is None or not _is_close(total, gradient):
            return Outcome(f"its gradient of {name} differs")
        partial.append(name.rpartition(".")[0])
    return Outcome(None, partial=tuple(dict.fromkeys(partial)))


def _own_part(module: nn.Module, name: str, whole: Tensor) -> Tensor:
    cut = None if name.startswith("input ") else cut_of(module.get_parameter(name))
    return whole if cut is None or cut.slices is None else cut.slices.take(whole)


def _is_close(found: Tensor, expected: Tensor) -> bool:
    if found.shape != expected.shape:
        return False
    scale = expected.abs().max().item() if expected.numel() else 0.0
    return bool(torch.allclose(found, expected, rtol=0, atol=_TOLERANCE * max(scale, 1e-3)))
