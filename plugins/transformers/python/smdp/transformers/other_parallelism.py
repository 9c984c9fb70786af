"""Who else is asked to average gradients or to divide the model: DeepSpeed, FSDP, Megatron-LM."""

from __future__ import annotations

import os

from transformers import TrainingArguments


def asked_for(args: TrainingArguments, name: str) -> str | None:
    """Tell where one of them is asked for.

    Args:
        args: The arguments.
        name: As Accelerate and the arguments call it: "fsdp".

    Returns:
        The argument, or the variable by which `accelerate launch` and Accelerator(...) ask; None: nowhere.
    """
    if getattr(args, name, None):
        return f"the argument {name}"
    # Accelerate obeys it whatever the arguments say; on CPUs it passes over it without a word.
    variable = f"ACCELERATE_USE_{name.upper()}"
    return f"{variable}=true" if os.environ.get(variable, "").lower() == "true" else None
