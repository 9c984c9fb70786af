"""Translates state dicts of transformers between the names and layouts of Hugging Face and of smp.nn."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_KINDS = ("weight", "bias")


@dataclass(frozen=True)
class Names:
    """The names of a module in a layer.

    Attributes:
        theirs: Hugging Face's name.
        ours: The names of smp.nn, in the order in which Hugging Face's module has their outputs.
        is_turned: Whether Hugging Face's weight is (inputs, outputs).
    """

    theirs: str
    ours: tuple[str, ...]
    is_turned: bool = False

    def to_ours(self, kind: str, value: Tensor) -> dict[str, Tensor]:
        """Returns the tensors of smp.nn, by name."""
        turned = value.t() if self.is_turned and kind == "weight" else value
        parts = turned.chunk(len(self.ours))
        is_same = len(parts) == 1 and turned is value
        return {
            f"{name}.{kind}": part if is_same else part.contiguous()
            for name, part in zip(self.ours, parts, strict=True)
        }

    def to_theirs(self, kind: str, values: Sequence[Tensor]) -> Tensor:
        """Returns Hugging Face's tensor, given those of smp.nn."""
        joined = values[0] if len(values) == 1 else torch.cat(list(values))
        return joined.t().contiguous() if self.is_turned and kind == "weight" else joined


class LayerNames:
    """The names of the layers of a kind of model.

    Args:
        theirs: Hugging Face's prefix of a layer, with the number as {}, such as "h.{}".
        ours: The prefix in smp.nn.
        names: The modules of a layer.
    """

    def __init__(self, theirs: str, ours: str, names: Sequence[Names]) -> None:
        self._theirs, self._ours, self._names = theirs, ours, list(names)
        self._their_pattern = _pattern(theirs)
        self._our_pattern = _pattern(ours)

    def to_ours(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a state dict with the names of smp.nn; entries outside of layers stay.

        Buffers of layers, such as causal masks, are left out, because smp.nn has none.
        """
        by_name = {f"{each.theirs}.{kind}": (each, kind) for each in self._names for kind in _KINDS}
        found: dict[str, Any] = {}
        for key, value in state_dict.items():
            match = self._their_pattern.fullmatch(key)
            if match is None:
                found[key] = value
            elif match["rest"] in by_name:
                each, kind = by_name[match["rest"]]
                prefix = match["before"] + self._ours.format(match["number"])
                found |= {f"{prefix}.{name}": part for name, part in each.to_ours(kind, value).items()}
        return found

    def to_theirs(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a state dict with Hugging Face's names; entries outside of layers stay."""
        found: dict[str, Any] = {}
        firsts = {f"{each.ours[0]}.{kind}": (each, kind) for each in self._names for kind in _KINDS}
        for key, value in state_dict.items():
            match = self._our_pattern.fullmatch(key)
            if match is None:
                found[key] = value
            elif match["rest"] in firsts:
                each, kind = firsts[match["rest"]]
                here = key.removesuffix(match["rest"])
                name = f"{match['before']}{self._theirs.format(match['number'])}.{each.theirs}.{kind}"
                found[name] = each.to_theirs(kind, [state_dict[f"{here}{own}.{kind}"] for own in each.ours])
        return found

    def numbers(self, state_dict: Mapping[str, Any]) -> list[str]:
        """Returns the prefixes of the layers of a state dict with Hugging Face's names."""
        found = (self._their_pattern.fullmatch(key) for key in state_dict)
        return list(
            dict.fromkeys(f"{each['before']}{self._theirs.format(each['number'])}" for each in found if each)
        )


class ModelNames:
    """The names of a language model that is replaced as a whole.

    Args:
        layers: The names of its layers.
        ends: Hugging Face's prefixes outside of layers, within "transformer.", with those of smp.nn.
        mask: The name of the causal mask in a layer, which old versions of transformers save.
    """

    def __init__(self, layers: LayerNames, ends: Mapping[str, str], mask: str) -> None:
        self._layers, self._ends, self._mask = layers, dict(ends), mask

    def to_ours(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a state dict with the names of smp.nn, given one with Hugging Face's."""
        inner = {key.removeprefix("transformer."): value for key, value in state_dict.items()}
        return _renamed(self._layers.to_ours(inner), self._ends)

    def to_theirs(self, state_dict: Mapping[str, Any], max_seq_len: int | None = None) -> dict[str, Any]:
        """Returns a state dict with Hugging Face's names, given one with those of smp.nn.

        Args:
            state_dict: Entries of a model with or without a head.
            max_seq_len: The size of the causal masks that old versions of transformers expect. None: no masks
                are added.
        """
        reverse = {ours: theirs for theirs, ours in self._ends.items()}
        found = _renamed(self._layers.to_theirs(state_dict), reverse)
        if max_seq_len is not None:
            for layer in self._layers.numbers(found):
                mask = torch.ones(max_seq_len, max_seq_len, dtype=torch.bool).tril()
                found[f"{layer}.{self._mask}.bias"] = mask[None, None]
                found[f"{layer}.{self._mask}.masked_bias"] = torch.tensor(-1e9)
        if not any(key.startswith("lm_head.") for key in state_dict):
            return found
        return {key if key.startswith("lm_head.") else f"transformer.{key}": found[key] for key in found}


def _renamed(state_dict: Mapping[str, Any], prefixes: Mapping[str, str]) -> dict[str, Any]:
    found = {}
    for key, value in state_dict.items():
        prefix = next((each for each in prefixes if key.startswith(f"{each}.")), None)
        found[key if prefix is None else prefixes[prefix] + key.removeprefix(prefix)] = value
    return found


def _pattern(prefix: str) -> re.Pattern[str]:
    inner = re.escape(prefix).replace(r"\{\}", r"(?P<number>\d+)")
    return re.compile(rf"(?P<before>(?:.*\.)?){inner}\.(?P<rest>.+)")
