"""Models whose parameters and gradients have 16 bits."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from smdp.torch.initialization.delayed_initialization import recording
from smdp.torch.pipelining.pipelined.pipelined_module import PipelinedModule
from smdp.torch.pipelining.tensors.containers import map_tensors

LOW = (torch.bfloat16, torch.float16)

_MARK = "_smdp_lowered"  # an attribute of a lowered model, with its dtype
_FLOATS = (torch.float32, *LOW)
# By class name, so that a wrapper's package need not be imported to recognize it.
_WRAPPERS = (
    "DistributedDataParallel",
    "DataParallel",
    "FullyShardedDataParallel",
    "FSDPModule",
    "ShardedDataParallel",
)
# torch computes these in 32 bits whatever the dtype of the input. Running statistics need the precision.
_KEPT = (nn.modules.batchnorm._BatchNorm,)


def lower_precision(model: nn.Module, dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    """Converts the parameters of a model to 16 bits, in place.

    The parameters stay the same objects, so an optimizer that has them keeps them. Call it before the model
    is wrapped in DistributedDataParallel or split by `pipeline()`. Parameters and buffers with 32 bits are
    converted, except those of batch norms. Inputs of the model with up to 32 bits are converted to `dtype`,
    and its outputs of `dtype` to 32 bits, also inside of tuples, lists, dicts and dataclasses.

    Args:
        model: The model, which may be divided by `tensor_parallel()`. Its parameters may have this dtype
            already.
        dtype: `torch.bfloat16` or `torch.float16`.

    Returns:
        The model.

    Raises:
        ValueError: The dtype is another one, or the model is wrapped, or has another 16-bit dtype already.
            Nothing is changed then.

    Example:
        >>> model = smdp.torch.lower_precision(model)  # doctest: +SKIP
        >>> model = smdp.torch.DistributedDataParallel(model)  # doctest: +SKIP
        >>> optimizer = torch.optim.AdamW(model.parameters())  # doctest: +SKIP
        >>> optimizer = smdp.torch.MixedPrecision(optimizer, model)  # doctest: +SKIP
    """
    check_dtype("lower_precision", dtype)
    if not isinstance(model, nn.Module):
        raise ValueError(f"[smdp] lower_precision got a {type(model).__name__}; expected a torch.nn.Module.")
    check_not_sharded("lower_precision", model)
    if (wrapper := _wrapper_of(model)) is not None:
        raise ValueError(
            f"[smdp] lower_precision got a model in {wrapper}, which knows the parameters with 32 bits. Call"
            f" smdp.torch.lower_precision(model, {dtype}) before the model is wrapped or split."
        )
    check_parameters("lower_precision", model, dtype)
    return lower(model, dtype)


def lower(model: nn.Module, dtype: torch.dtype, *, keyword_inputs: bool = True) -> nn.Module:
    """Converts a model as `lower_precision()` does, without its checks. A converted model is left alone.

    Parameters without memory, as of `delayed_initialization()`, get their values in this dtype.

    Args:
        model: The model, which is changed in place.
        dtype: The dtype.
        keyword_inputs: Whether keyword arguments of the model are converted as well.
    """
    if hasattr(model, _MARK):
        return model
    for module in model.modules():
        lower_own(module, dtype)
    model.register_forward_pre_hook(_LoweredInputs(dtype, keywords=keyword_inputs), with_kwargs=True)
    raise_outputs(model, dtype)
    cast("Any", model)._smdp_lowered = dtype
    return model


def raise_outputs(model: nn.Module, dtype: torch.dtype) -> None:
    """Converts outputs of a model that have this dtype to 32 bits."""
    model.register_forward_hook(_RaisedOutputs(dtype))


def check_dtype(feature: str, dtype: object) -> None:
    """Checks that a dtype is one to which models are lowered.

    Raises:
        ValueError: It is not.
    """
    if dtype not in LOW:
        raise ValueError(f"[smdp] {feature}: dtype is {dtype!r}; allowed: torch.bfloat16, torch.float16.")


def check_parameters(feature: str, model: nn.Module, dtype: torch.dtype, fix: str | None = None) -> None:
    """Checks that no parameter of a model stands against 16 bits of this kind.

    Args:
        feature: What converts the model.
        model: The model.
        dtype: The dtype to which it is converted.
        fix: What the message recommends first. Default: to pass the dtype of the parameters.

    Raises:
        ValueError: One does.
    """
    check_not_sharded(feature, model)
    other = next(each for each in LOW if each is not dtype)
    for name, parameter in model.named_parameters():
        if parameter.dtype is other:
            raise ValueError(
                f"[smdp] {feature}: parameter {name!r} has {parameter.dtype}, but dtype is {dtype}."
                f" {fix or f'Pass dtype={parameter.dtype}'}, or build the model in torch.float32."
            )


def check_not_sharded(feature: str, model: nn.Module) -> None:
    """Checks that the parameters of a model are not distributed over ranks.

    Raises:
        ValueError: They are. The message names the way to train them with 16 bits.
    """
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            raise ValueError(
                f"[smdp] {feature}: parameter {name!r} is a DTensor of {parameter.dtype}, of which each rank"
                " has a shard. Such a model computes in 16 bits itself, and its float32 shards are the"
                " masters: build it in torch.float32, wrap it as"
                " smdp.torch.ShardedDataParallel(model, dtype=torch.bfloat16) (or fully_shard(model,"
                " mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))), and use a plain torch"
                " optimizer."
            )


def is_wrapped(model: nn.Module) -> bool:
    """Returns whether it is too late to convert the parameters of a model."""
    return _wrapper_of(model) is not None


def _wrapper_of(model: nn.Module) -> str | None:
    if isinstance(model, PipelinedModule):
        return "a pipeline"
    kinds = {kind.__name__ for kind in type(model).__mro__}
    return next((wrapper for wrapper in _WRAPPERS if wrapper in kinds), None)


def lower_buffers(model: nn.Module, dtype: torch.dtype) -> None:
    """Converts the buffers of a model, except those of batch norms."""
    for module in model.modules():
        if not isinstance(module, _KEPT):
            _lower_own_buffers(module, dtype)


def lower_own(module: nn.Module, dtype: torch.dtype) -> None:
    """Converts what belongs to a module itself, unless it is a batch norm."""
    if isinstance(module, _KEPT):
        return
    for parameter in module._parameters.values():
        if parameter is not None and parameter.dtype is torch.float32:
            with recording(parameter):
                parameter.data = parameter.data.to(dtype)
            if parameter.grad is not None:
                parameter.grad = None  # it has the old dtype
    _lower_own_buffers(module, dtype)


def _lower_own_buffers(module: nn.Module, dtype: torch.dtype) -> None:
    for name, buffer in module._buffers.items():
        if buffer is not None and buffer.dtype is torch.float32:
            with recording(buffer):
                module._buffers[name] = buffer.to(dtype)


class _LoweredInputs:
    """A forward pre-hook, as an object that can be copied and pickled with its model."""

    def __init__(self, dtype: torch.dtype, *, keywords: bool) -> None:
        self._dtype = dtype
        self._has_keywords = keywords

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if self._has_keywords:
            kwargs = map_tensors(self._lowered, kwargs)
        return map_tensors(self._lowered, args), kwargs

    def _lowered(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._dtype) if tensor.dtype in _FLOATS else tensor


class _RaisedOutputs:
    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        return map_tensors(self._raised, output)

    def _raised(self, tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.dtype is self._dtype else tensor
