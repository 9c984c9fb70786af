"""A traced model: its units in execution order, with times and sizes. The JSON schema is in docs/memory.md.

A framework plugin writes it when it runs the model; the memory model and the partitioner read it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

from smdp import _json
from smdp._errors import ConfigError
from smdp._shown import shown

VERSION = 1

# Bytes per element, by the dtype names of torch and NumPy.
ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}

_MOST_SECONDS = 1e9
_MOST_BYTES = 2**60
_MOST_SAMPLES = 2**30
_MOST_STAGES = 2**16


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """The smallest piece of a model that is never cut: a module or a run of modules.

    Attributes:
        name: Dotted path of the module, unique among units. The dots define the tree of modules.
        forward: Seconds of a microbatch's forward.
        backward_input: Seconds of a microbatch's input gradient.
        backward_weight: Seconds of a microbatch's weight gradient.
        parameter_bytes: Bytes of all parameters that it uses, including tied ones.
        activation_bytes: Bytes of a microbatch kept from forward to backward, without checkpointing.
        cut_bytes: Bytes of a microbatch that cross a cut directly after the unit, in one direction: its own
            output, and values that earlier units send to later ones. 0 for the last unit.
        stage: The virtual stage that the unit is pinned to; None if it is not pinned.
    """

    name: str
    forward: float = 0.0
    backward_input: float = 0.0
    backward_weight: float = 0.0
    parameter_bytes: int = 0
    activation_bytes: int = 0
    cut_bytes: int = 0
    stage: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Tied:
    """A parameter that several units share.

    Attributes:
        name: Name of the parameter.
        bytes: Its size, which is included in the parameter_bytes of every unit that uses it.
        units: Names of the units, two or more.
    """

    name: str
    bytes: int
    units: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """All units of a model, in execution order.

    Attributes:
        units: The units, at least one.
        tied: Groups of units that share parameters.
        name: Name of the model.
        microbatch_size: Number of samples in the traced microbatch.
        parameter_dtype: Type of the parameters, a key of ELEMENT_BYTES.

    Raises:
        ValueError: A value is invalid. The message has its position, the value, and what is allowed.
    """

    units: tuple[Unit, ...]
    tied: tuple[Tied, ...] = ()
    name: str = "model"
    microbatch_size: int = 1
    parameter_dtype: str = "float32"

    def __post_init__(self) -> None:
        _check_text("name", self.name)
        _check_whole("microbatch_size", self.microbatch_size, 1, _MOST_SAMPLES)
        if not isinstance(self.parameter_dtype, str) or self.parameter_dtype not in ELEMENT_BYTES:
            raise _wrong("parameter_dtype", self.parameter_dtype, ", ".join(ELEMENT_BYTES))
        _check_units(self.units)
        _check_tied(self.tied, {unit.name: unit.parameter_bytes for unit in self.units})

    @classmethod
    def from_json(cls, text: str) -> Trace:
        """Returns the trace in JSON written by to_json().

        Raises:
            ValueError: The text is not JSON, or not a valid trace.
        """
        if not isinstance(text, (str, bytes)):
            raise ValueError(f"[smdp] a trace must be JSON text, not {type(text).__name__}")
        try:
            values = _json.loads(text)
        except RecursionError:
            raise ValueError("[smdp] the JSON of a trace is nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"[smdp] a trace must be JSON: {error}") from None
        values = _object("trace", values, {"smdp_trace", *(field.name for field in fields(cls))}, {"units"})
        version = values.pop("smdp_trace", None)
        if isinstance(version, bool) or version != VERSION:
            raise _wrong("smdp_trace", version, str(VERSION))
        values["units"] = _objects("units", values["units"], _unit)
        values["tied"] = _objects("tied", values.get("tied", []), _tied)
        return cls(**values)

    def to_json(self) -> str:
        """Returns the trace as JSON for from_json(). The field `stage` is omitted if it is None."""
        values = {"smdp_trace": VERSION, **asdict(self)}
        values["units"] = [
            {name: value for name, value in unit.items() if value is not None} for unit in values["units"]
        ]
        return json.dumps(values, indent=1)

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Trace:
        """Reads a trace from a file.

        Raises:
            ConfigError: The file cannot be read, or does not contain a valid trace.
            TypeError: The path is not a path.
        """
        if not isinstance(path, (str, PathLike)):
            raise TypeError(f"[smdp] path = {shown(path)} is not valid; allowed: a path")
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"[smdp] cannot read {path}: {error}") from None
        except ValueError as error:
            raise ConfigError(f"{error} (in {path})") from None

    def write(self, path: str | PathLike[str]) -> None:
        """Writes the trace to a file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    def memory_arguments(
        self,
    ) -> tuple[list[tuple[float, float, float]], list[tuple[float, list[int]]], int]:
        """Returns units, tied groups and microbatch size in the form that the memory model expects."""
        size = ELEMENT_BYTES[self.parameter_dtype]
        index = {unit.name: place for place, unit in enumerate(self.units)}
        units = [
            (unit.parameter_bytes / size, float(unit.activation_bytes), float(unit.cut_bytes))
            for unit in self.units
        ]
        tied = [(group.bytes / size, [index[name] for name in group.units]) for group in self.tied]
        return units, tied, self.microbatch_size


def _wrong(place: str, value: object, allowed: str) -> ValueError:
    return ValueError(f"[smdp] trace: {place} = {shown(value, 120)} is not valid; allowed: {allowed}")


def _check_text(place: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise _wrong(place, value, "a string that is not empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _wrong(place, value, "a string without unpaired surrogates") from None


def _check_whole(place: str, value: object, smallest: int, largest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
        raise _wrong(place, value, f"an integer from {smallest} to {largest}")


def _check_type(place: str, values: object, kind: type) -> None:
    allowed = f"a tuple of {kind.__name__} objects"
    if not isinstance(values, tuple):
        raise _wrong(place, values, allowed)
    for index, value in enumerate(values):
        if not isinstance(value, kind):
            raise _wrong(f"{place}[{index}]", value, f"a {kind.__name__} object")


def _check_units(units: tuple[Unit, ...]) -> None:
    _check_type("units", units, Unit)
    if not units:
        raise _wrong("units", [], "at least one unit")
    places: dict[str, int] = {}
    pinned: Unit | None = None
    for index, unit in enumerate(units):
        place = f"units[{index}]"
        _check_text(f"{place}.name", unit.name)
        if unit.name in places:
            raise _wrong(f"{place}.name", unit.name, f"a name that units[{places[unit.name]}] does not have")
        places[unit.name] = index
        for kind in ("forward", "backward_input", "backward_weight"):
            value = getattr(unit, kind)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= _MOST_SECONDS:
                raise _wrong(f"{place}.{kind}", value, f"seconds, from 0 to {_MOST_SECONDS:.0f}")
        for kind in ("parameter_bytes", "activation_bytes", "cut_bytes"):
            _check_whole(f"{place}.{kind}", getattr(unit, kind), 0, _MOST_BYTES)
        if unit.stage is None:
            continue
        _check_whole(f"{place}.stage", unit.stage, 0, _MOST_STAGES)
        if pinned is not None and pinned.stage is not None and unit.stage < pinned.stage:
            raise _wrong(
                f"{place}.stage",
                unit.stage,
                f"{pinned.stage} or more, because {pinned.name} runs earlier and is on stage {pinned.stage}",
            )
        pinned = unit
    if units[-1].cut_bytes != 0:
        raise _wrong(
            f"units[{len(units) - 1}].cut_bytes", units[-1].cut_bytes, "0, because no unit follows the last"
        )


def _check_tied(tied: tuple[Tied, ...], owned: dict[str, int]) -> None:
    _check_type("tied", tied, Tied)
    shared: dict[str, int] = {}
    for index, group in enumerate(tied):
        place = f"tied[{index}]"
        _check_text(f"{place}.name", group.name)
        _check_whole(f"{place}.bytes", group.bytes, 0, _MOST_BYTES)
        if not isinstance(group.units, tuple) or len(group.units) < 2:
            raise _wrong(f"{place}.units", group.units, "two or more names of units")
        for at, name in enumerate(group.units):
            if not isinstance(name, str) or name not in owned or name in group.units[:at]:
                raise _wrong(f"{place}.units[{at}]", name, "the name of a unit, and each unit only once")
            shared[name] = shared.get(name, 0) + group.bytes
            if shared[name] > owned[name]:
                raise _wrong(
                    f"{place}.bytes",
                    group.bytes,
                    f"no more than the parameter_bytes of {name}, {owned[name]}",
                )


def _object(place: str, value: object, known: set[str], needed: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(place, value, "an object")
    for name in value:
        if name not in known:
            raise _wrong(place, name, "the fields " + ", ".join(sorted(known)))
    for name in sorted(needed):
        if name not in value:
            raise ValueError(f"[smdp] trace: {place} lacks the field {name}")
    return dict(value)


def _objects(place: str, value: object, make: Callable[[str, object], Any]) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _wrong(place, value, "a list of objects")
    return tuple(make(f"{place}[{index}]", each) for index, each in enumerate(value))


def _unit(place: str, value: object) -> Unit:
    return Unit(**_object(place, value, {field.name for field in fields(Unit)}, {"name"}))


def _tied(place: str, value: object) -> Tied:
    values: Mapping[str, Any] = _object(
        place, value, {field.name for field in fields(Tied)}, {"name", "bytes", "units"}
    )
    units = values["units"]
    return Tied(
        name=values["name"], bytes=values["bytes"], units=tuple(units) if isinstance(units, list) else units
    )
