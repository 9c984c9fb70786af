"""Builds models without memory for their parameters, whose owners compute the values later."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from smdp._errors import SmdpError
from smdp.torch.initialization.tape import Tape, tape_of
from smdp.torch.initialization.windows import Window
from smdp.torch.mesh.cuts import cut_of
from smdp.torch.mesh.slices import Slices

_active = threading.local()
_REGISTRIES = ("_parameters", "_buffers", "_modules")


@contextlib.contextmanager
def delayed_initialization() -> Iterator[None]:
    """Builds models within the context as meta tensors, which take no memory.

    All operations that initialize parameters and buffers are recorded. When `smdp.torch.pipeline()` splits
    the model, each rank computes the values of its own parameters. They have the same bits as those of
    `torch.manual_seed(seed); Model()`. Random numbers are drawn and dropped during the recording as well, so
    generators go through the same states as without the context.

    Values that the initialization reads on the host (`.item()`, `if tensor.any()`) are computed. Changes of
    parameters after the context, before they have values, are lost. A nested context has no effect.

    Raises:
        smdp.SmdpError: An operation cannot be recorded, for example one on sparse tensors.

    Example:
        >>> import torch
        >>> from smdp.torch import delayed_initialization
        >>> with delayed_initialization():
        ...     model = torch.nn.Linear(1000, 1000)
        >>> model.weight.is_meta
        True
    """
    if getattr(_active, "tape", None) is not None:
        yield
        return
    with _recording(Tape()):
        yield


def materialize(
    model: nn.Module, is_owned: Callable[[str], bool], device: torch.device | str | None = None
) -> None:
    """Computes the values of owned parameters and of all buffers. Other parameters become meta tensors.

    The model may have been built in `delayed_initialization()`, on `torch.device("meta")`, or with real
    parameters; see `record_initialization()` for the meta device. It may be called again with more names.
    Parameters become new objects and stay shared, so create the optimizer afterwards.

    Of a parameter that has a mark of its slices (`mesh/cuts.py`), only the slices stay in memory. At most one
    whole tensor of these is in memory at a time, if the initialization finishes one before the next.

    Args:
        model: The model, which is changed in place.
        is_owned: Called with every name of each parameter. A tied parameter is owned if any of its names is.
        device: The device of the owned parameters and buffers. Default: the device they were built for.

    Raises:
        smdp.SmdpError: The initialization of a parameter is unknown. The message names the parameter.
    """
    record_initialization(model)
    owned = {
        id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False) if is_owned(name)
    }
    wanted: dict[Tape, dict[int, Tensor]] = {}
    for _, tensor in _tensors(model):
        tape = tape_of(tensor)
        if tape is not None and (id(tensor) in owned or not isinstance(tensor, nn.Parameter)):
            wanted.setdefault(tape, {})[id(tensor)] = tensor
    made = {
        identity: (tensor, _to_device(tensor, device))
        for identity, tensor in ((id(tensor), tensor) for _, tensor in _tensors(model))
        if not tensor.is_meta and (identity in owned or not isinstance(tensor, nn.Parameter))
    }
    for _, parameter in model.named_parameters():
        if id(parameter) not in owned and not parameter.is_meta:
            made[id(parameter)] = (parameter, _like(parameter, torch.empty_like(parameter, device="meta")))
    for tape, tensors in wanted.items():
        for tensor, real in zip(tensors.values(), _values(tape, list(tensors.values()), device), strict=True):
            made[id(tensor)] = (tensor, real)
    _replace(model, made)


class _Operations(TorchDispatchMode):
    """Passes operations to the tape."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunction():
            return self._tape.call(func, args, dict(kwargs or {}))


class _Reads(TorchFunctionMode):
    """Answers Python's reads of a meta tensor as if it had values, because initializers skip meta tensors."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape
        self._answers: dict[Any, Callable[..., Any]] = {
            Tensor.device.__get__: lambda tensor, device: device,
            Tensor.is_meta.__get__: lambda tensor, device: False,
            Tensor.is_cpu.__get__: lambda tensor, device: device.type == "cpu",
            Tensor.is_cuda.__get__: lambda tensor, device: device.type == "cuda",
            Tensor.tolist: lambda tensor, device: tape.values(tensor).tolist(),
            Tensor.numpy: lambda tensor, device, **options: tape.values(tensor).clone().numpy(**options),
            Tensor.__array__: lambda tensor, device, dtype=None: tape.values(tensor).clone().__array__(dtype),
            Tensor.new_tensor: _new_tensor,
            torch.where: _where,
            Tensor.__getitem__: lambda tensor, device, index: tensor[_index(index)],
            Tensor.__setitem__: _set_item,
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        answer = self._answers.get(func)
        if answer is not None:
            with torch._C.DisableTorchFunction():
                device = self._tape.device(args[0])
            if device is not None:
                return answer(args[0], device, *args[1:], **kwargs)
        return func(*args, **kwargs)


def _new_tensor(tensor: Tensor, place: torch.device, data: Any, **options: Any) -> Tensor:
    return torch.tensor(data, **{"dtype": tensor.dtype, "device": place, **options})


# torch would convert lists and numbers to tensors on the meta device and lose their values.
def _index(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_index(each) for each in index)
    return torch.tensor(index) if isinstance(index, list) else index


def _where(condition: Tensor, place: torch.device, *choices: Any) -> Tensor:
    return torch.where(
        condition, *(torch.tensor(each) if isinstance(each, (int, float)) else each for each in choices)
    )


def _set_item(tensor: Tensor, place: torch.device, index: Any, value: Any) -> None:
    number = not isinstance(value, Tensor)
    tensor[_index(index)] = torch.tensor(value, dtype=tensor.dtype, device=place) if number else value


@contextlib.contextmanager
def _recording(tape: Tape) -> Iterator[None]:
    _active.tape = tape
    try:
        with _Reads(tape), _Operations(tape):
            yield
    finally:
        _active.tape = None
        tape.forget_draws()


def record_initialization(model: nn.Module) -> None:
    """Records how a model on the meta device is initialized, unless this is known or the model has memory.

    This calls transformers' `initialize_weights()`, or each module's `reset_parameters()` in module order,
    with the default generator. Call it before modules are divided, because they then have other sizes.

    Raises:
        smdp.SmdpError: The initialization of a parameter is unknown. The message names the parameter.
    """
    if all(tape_of(tensor) is not None for _, tensor in _tensors(model) if tensor.is_meta):
        return
    for name, tensor in _tensors(model):
        if tape_of(tensor) is not None:
            raise SmdpError(
                f"[smdp] {name} was built in delayed_initialization(), but other parts of the model were"
                " built outside it, or were changed afterwards, as by .half() or .to(). Do all of this inside"
                " delayed_initialization()."
            )
    tape = Tape()
    for _, tensor in _tensors(model):
        if tensor.is_meta:
            tape.adopt(tensor)
    with _recording(tape), torch.no_grad():
        _reset(model, "")
    windows = {id(tensor): window for _, tensor in _tensors(model) if (window := tape.window(tensor))}
    missing = tape.uninitialized({window.node for window in windows.values()})
    for name, tensor in _tensors(model):
        if id(tensor) in windows and windows[id(tensor)].node in missing:
            raise SmdpError(
                f"[smdp] {name} is on the meta device, and no method that can be called again initializes it."
                " Build the model in smdp.torch.delayed_initialization() instead."
            )


def random_trace(model: nn.Module) -> str:
    """Returns a text that differs if the recorded initializations draw other random numbers."""
    tapes = dict.fromkeys(filter(None, (tape_of(tensor) for _, tensor in _tensors(model))))
    digest = hashlib.sha256()
    for tape in tapes:
        for operation in tape.operations:
            if operation.state is not None:
                digest.update(operation.state.numpy().tobytes())
    return digest.hexdigest()


def _reset(module: nn.Module, name: str) -> None:
    if callable(getattr(module, "initialize_weights", None)):  # transformers' method, for the whole model
        module.initialize_weights()
        return
    for child_name, child in module.named_children():
        _reset(child, f"{name}.{child_name}" if name else child_name)
    # torch.nn.MultiheadAttention's method begins with an underscore.
    reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    if callable(reset):
        reset()
        return
    with torch._C.DisableTorchFunction():
        lost = [each for each, value in module.named_parameters(recurse=False) if value.is_meta]
    if lost:
        raise SmdpError(
            f"[smdp] {name or 'the model'} ({type(module).__name__}) is on the meta device with parameters "
            f"{', '.join(lost)}, but has no reset_parameters(). Build the model in "
            "smdp.torch.delayed_initialization() instead."
        )


def _values(tape: Tape, tensors: list[Tensor], device: torch.device | str | None) -> list[Tensor]:
    tape.forget_draws()
    windows = [window for tensor in tensors if (window := tape.window(tensor)) is not None]
    cut: dict[int, list[tuple[Window, Slices]]] = {}
    whole: set[int] = set()
    for tensor, window in zip(tensors, windows, strict=True):
        mark = cut_of(tensor)
        if mark is None or mark.slices is None:
            whole.add(window.node)
        else:
            cut.setdefault(window.node, []).append((window, mark.slices))
    parts: dict[Window, Tensor] = {}

    def finish(node: int, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        for window, slices in cut.get(node, ()):
            part = slices.take(window.on(storage))
            parts[window] = part if device is None else part.to(device)
        if node not in whole:
            return torch.UntypedStorage(0)
        if device is None:
            return storage
        values = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        return values.to(device).untyped_storage()

    storages = tape.replay({window.node for window in windows}, finish)
    return [
        _like(tensor, parts[window] if window in parts else window.on(storages[window.node]))
        for tensor, window in zip(tensors, windows, strict=True)
    ]


def _to_device(tensor: Tensor, device: torch.device | str | None) -> Tensor:
    if device is None or tensor.device == torch.device(device):
        return tensor
    return _like(tensor, tensor.detach().to(device))


def _like(tensor: Tensor, values: Tensor) -> Tensor:
    """Returns values with the class, flags and attributes of the tensor that they replace."""
    new = values.detach()
    if isinstance(tensor, nn.Parameter):
        new = Tensor._make_subclass(type(tensor), new, tensor.requires_grad)
    new.__dict__.update(tensor.__dict__)
    return new


def _holders(model: nn.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the dicts that hold a model's tensors: parameters, buffers and other attributes of modules."""
    for prefix, module in model.named_modules():
        attributes = {name: value for name, value in vars(module).items() if name not in _REGISTRIES}
        yield prefix, module._parameters
        yield prefix, module._buffers
        yield prefix, attributes


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields all tensors with their names, and shared ones under each name."""
    for prefix, holder in _holders(model):
        for name, value in holder.items():
            for tensor in _leaves(value):
                yield f"{prefix}.{name}" if prefix else name, tensor


def _leaves(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif type(value) in (list, tuple, dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _leaves(each)


def _replace(model: nn.Module, made: dict[int, tuple[Tensor, Tensor]]) -> None:
    for module in model.modules():
        for holder in (module._parameters, module._buffers, vars(module)):
            for name, value in list(holder.items()):
                if name not in _REGISTRIES:
                    holder[name] = _replaced(value, made)


def _replaced(value: Any, made: dict[int, tuple[Tensor, Tensor]]) -> Any:
    if isinstance(value, Tensor):
        return made[id(value)][1] if id(value) in made else value
    if not any(id(tensor) in made for tensor in _leaves(value)):
        return value
    if isinstance(value, dict):
        return {key: _replaced(each, made) for key, each in value.items()}
    return type(value)(_replaced(each, made) for each in value)
