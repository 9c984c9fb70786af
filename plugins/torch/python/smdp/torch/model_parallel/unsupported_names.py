"""Names of SMP that smdp does not support yet: they can be imported, and raise when they are used."""

from __future__ import annotations

from typing import Any, NoReturn

_LATER = {"sharded_data_parallel_checkpoint": "sharded data parallelism"}


def comes_later(name: str, feature: str) -> type:
    """Returns a class that raises when it is instantiated.

    Scripts often import more names of SMP than they use.

    Args:
        name: The name after `smp.`.
        feature: The feature that it belongs to.
    """

    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"[smdp] smp.{name} belongs to {feature}, which smdp does not support yet")

    return type(
        name.rpartition(".")[2],
        (),
        {"__init__": refuse, "__doc__": f"Belongs to {feature}, which smdp does not support yet."},
    )


def find_later(name: str) -> Any:
    """Returns a stand-in for a name of SMP that smdp does not support yet.

    Args:
        name: The name after `smp.`.

    Raises:
        AttributeError: SMP has no such name.
    """
    if name in _LATER:
        return comes_later(name, _LATER[name])
    raise AttributeError(f"[smdp] smdp.torch.model_parallel has no name {name!r}")
