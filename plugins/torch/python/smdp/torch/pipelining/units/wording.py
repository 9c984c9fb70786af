"""What messages call things: several APIs split models, and a message names the one that the user wrote."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Wording:
    """The words of one API.

    Attributes:
        split: What is given the model.
        compiled: How a model is compiled there.
        traced: What makes the split follow the order in which modules run.
        step: How the split model is run.
        backward: What the schedule runs the backward of.
    """

    split: str
    compiled: str
    traced: str
    step: str
    backward: str


PIPELINE = Wording(
    split="pipeline()",
    compiled="compile=True lets torch.compile make its modules",
    traced="Give pipeline() example_inputs",
    step="use train_step(batch, loss_fn), eval_step(batch, loss_fn) or run_step(program, microbatches)",
    backward="what the loss function of train_step() returns, or backward(loss) of the split model is given",
)
