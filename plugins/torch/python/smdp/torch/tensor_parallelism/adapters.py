"""Adapters of peft around linear layers, which follow the division of the layer that they adapt."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from smdp.torch.tensor_parallelism.actions.action import Action
from smdp.torch.tensor_parallelism.actions.adapter_dropout import AdapterDropout
from smdp.torch.tensor_parallelism.actions.linears import Columns, Head, Rows
from smdp.torch.tensor_parallelism.actions.whole_modules import LatentOutputs, PartialGradient
from smdp.torch.tensor_parallelism.plan import TensorParallelPlan

_BASE = "base_layer"


class Adapters:
    """The LoRA layers of a model.

    The plan of a model with adapters is that of the model without them. In a layer that is divided by
    outputs, B is divided alike, and A is whole; in one that is divided by inputs, A is divided, and B is
    whole. Both add to the layer's output what they add in one process.

    Args:
        model: The model, which peft may have wrapped.

    Raises:
        ValueError: It has adapters that cannot be divided.
    """

    def __init__(self, model: nn.Module) -> None:
        self._prefix, self._inner = "", model
        if _is_peft(model, "PeftModel"):
            whole: Any = model
            for name, config in whole.peft_config.items():
                _check_kind(name, getattr(config.peft_type, "value", config.peft_type))
            self._inner = whole.get_base_model()
            self._prefix = next(f"{name}." for name, each in model.named_modules() if each is self._inner)
        self._layers: dict[str, Any] = {}
        self._extra: list[str] = []
        for name, module in self._inner.named_modules():
            if _is_peft(module, "BaseTunerLayer"):
                _check_layer(name, module)
                self._layers[name] = module
            elif _is_peft(module, "AuxiliaryTrainingWrapper"):
                self._extra.append(name)  # a trained copy of a whole module

    def __bool__(self) -> bool:
        """Returns whether there are any."""
        return bool(self._layers)

    @contextlib.contextmanager
    def removed(self) -> Iterator[nn.Module]:
        """Yields the model without adapters. They are back afterwards."""
        try:
            for name, layer in self._layers.items():
                self._put(name, layer.base_layer)
            yield self._inner
        finally:
            for name, layer in self._layers.items():
                self._put(name, layer)

    def follow(self, plan: TensorParallelPlan) -> TensorParallelPlan:
        """Returns the plan of the model with adapters, given that of the model without them.

        Raises:
            ValueError: Adapters cannot follow an action.
        """
        found: dict[str, Action] = {}
        for name, action in plan.actions.items():
            full = (self._prefix + name).rstrip(".")
            if name in self._layers:
                found[f"{full}.{_BASE}"] = action
                for key, follows in _followers(name, self._layers[name], action).items():
                    found[f"{full}.{key}"] = follows
            elif name not in self._extra:
                found[full] = action
        whole = {
            self._prefix + (f"{name}.{_BASE}" if name in self._layers else name): reason
            for name, reason in plan.whole.items()
        }
        return replace(plan, actions=found, whole=whole)

    def _put(self, name: str, module: nn.Module) -> None:
        parent, _, own = name.rpartition(".")
        self._inner.get_submodule(parent)._modules[own] = module


def _followers(name: str, layer: Any, action: Action) -> dict[str, Action]:
    """Returns what happens to the parts of an adapter, by name."""
    found: dict[str, Action] = {}
    whole_outside = (isinstance(action, Columns) and action.gathers) or (
        isinstance(action, Rows) and action.splits
    )
    if isinstance(action, Head) or whole_outside:
        return found
    if not isinstance(action, (Columns, Rows, PartialGradient, LatentOutputs)):
        raise ValueError(
            f"[smdp] tensor_parallel: module {name!r} has a LoRA adapter, and"
            f" {action.describe(1).partition(':')[0]} cannot divide it. Leave the module out of the adapter's"
            " target_modules, or divide it otherwise by a plan."
        )
    for adapter in layer.lora_A:
        if isinstance(action, (Columns, LatentOutputs)):
            found[f"lora_B.{adapter}"] = action
        elif isinstance(action, Rows):
            found[f"lora_A.{adapter}"] = action
        else:
            found[f"lora_A.{adapter}"] = found[f"lora_B.{adapter}"] = PartialGradient()
        if isinstance(layer.lora_dropout[adapter], nn.Dropout):
            is_split = isinstance(action, Rows)
            if is_split and len(getattr(action, "blocks", None) or ()) > 1:
                raise ValueError(
                    f"[smdp] tensor_parallel: the LoRA adapter of module {name!r} has dropout on inputs of"
                    " several blocks, which cannot be divided. Use lora_dropout = 0."
                )
            found[f"lora_dropout.{adapter}"] = AdapterDropout(is_split)
    return found


def _is_peft(module: Any, kind: str) -> bool:
    """Returns whether a module is of a class of peft, which need not be installed."""
    return any(each.__name__ == kind and each.__module__.startswith("peft.") for each in type(module).__mro__)


def _check_kind(name: str, kind: str) -> None:
    if kind != "LORA":
        raise ValueError(
            f"[smdp] tensor_parallel: adapter {name!r} is of peft's type {kind}. Only LoRA can be divided:"
            " use a LoraConfig, or train without tensor parallelism."
        )


def _check_layer(name: str, layer: Any) -> None:
    kind = type(layer)
    if not (_is_peft(layer, "LoraLayer") and kind.__name__ == "Linear"):
        raise ValueError(
            f"[smdp] tensor_parallel: module {name!r} has an adapter of class {kind.__module__}."
            f"{kind.__qualname__}, which cannot be divided. Only LoRA around linear layers can: change the"
            " adapter's target_modules."
        )
    for adapter, variant in layer.lora_variant.items():
        raise ValueError(
            f"[smdp] tensor_parallel: adapter {adapter!r} of module {name!r} is a"
            f" {type(variant).__name__}, which needs whole weights. Use plain LoRA, for example with use_dora"
            " = False."
        )
    if layer.merged:
        raise ValueError(
            f"[smdp] tensor_parallel: the adapter of module {name!r} is merged. Call unmerge_adapter(), or"
            " merge_and_unload(), before the model is divided."
        )
