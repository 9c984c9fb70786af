"""A plan: what happens to each module of a model, as users print it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from smdp.torch.tensor_parallelism.actions.action import Action
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis
from smdp.torch.tensor_parallelism.ties import check_ties

# Degrees that messages suggest, for models that no larger job would divide.
_MOST_TRIED = 64


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
                    f" {problem}. {self._fix(model)}"
                )
        check_ties(model, self.actions, self.degree)

    def _fix(self, model: nn.Module) -> str:
        """Returns the degrees that would do for all modules."""
        modules = {name: model.get_submodule(name) for name in self.actions}
        fits = [
            str(degree)
            for degree in range(2, _MOST_TRIED + 1)
            if all(action.problem(modules[name], degree) is None for name, action in self.actions.items())
        ]
        if not fits:
            return "No degree fits this plan. Pass a plan that leaves the module whole."
        return f"Degrees that fit: {', '.join(fits)}."

    def apply(self, model: nn.Module, axis: TensorAxis) -> None:
        """Divides the modules of a model."""
        for name, action in self.actions.items():
            action.apply(model.get_submodule(name), axis)

    def __str__(self) -> str:
        """Returns one line for each module."""
        width = max(map(len, (*self.actions, *self.whole)), default=0)
        lines = [f"{self.model} over {self.degree} ranks, by {self.source}"]
        lines += [
            f"  {name or '(model)':{width}}  {action.describe(self.degree)}"
            for name, action in self.actions.items()
        ]
        lines += [f"  {name:{width}}  whole: {reason}" for name, reason in self.whole.items()]
        return "\n".join(lines)
