"""A plan: what happens to each module of a model, as users print it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from smdp.torch.tensor_parallelism.actions.action import Action
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


@dataclass(frozen=True)
class TensorParallelPlan:
    """What `tensor_parallel()` does to each module of a model.

    Attributes:
        model: The class of the model.
        degree: The number of ranks.
        source: Where the plan comes from.
        actions: What happens, by the name of the module.
        whole: Modules with parameters that stay whole, with the reason.
    """

    model: str
    degree: int
    source: str
    actions: dict[str, Action] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)

    def check(self, model: nn.Module) -> None:
        """Checks that every action can be done.

        Raises:
            ValueError: One cannot. The message names the module.
        """
        for name, action in self.actions.items():
            problem = action.problem(model.get_submodule(name), self.degree)
            if problem is not None:
                raise ValueError(
                    f"[smdp] tensor_parallel: module {name!r} cannot be divided over {self.degree} ranks:"
                    f" {problem}. Use another degree, or a plan that leaves it whole."
                )

    def apply(self, model: nn.Module, axis: TensorAxis) -> None:
        """Divides the modules of a model."""
        for name, action in self.actions.items():
            action.apply(model.get_submodule(name), axis)

    def __str__(self) -> str:
        """Returns one line for each module."""
        width = max(map(len, (*self.actions, *self.whole)), default=0)
        lines = [f"{self.model} over {self.degree} ranks, by {self.source}"]
        lines += [
            f"  {name:{width}}  {action.describe(self.degree)}" for name, action in self.actions.items()
        ]
        lines += [f"  {name:{width}}  whole: {reason}" for name, reason in self.whole.items()]
        return "\n".join(lines)
