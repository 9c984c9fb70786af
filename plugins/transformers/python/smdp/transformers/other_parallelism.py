"""Detects other libraries that would average gradients or divide the model, such as DeepSpeed."""

from __future__ import annotations

import os

from transformers import TrainingArguments


def asked_for(args: TrainingArguments, name: str) -> str | None:
    """Returns the setting that selects a library, or None.

    Args:
        args: The training arguments.
        name: The library's name in Accelerate and in the arguments, for example "fsdp".

    Returns:
        The name of the argument, or of the variable that `accelerate launch` sets. None if the library is not
        selected.
    """
    if getattr(args, name, None):
        return f"the argument {name}"
    # Accelerate obeys the variable whatever the arguments are, but silently ignores it on CPUs.
    variable = f"ACCELERATE_USE_{name.upper()}"
    return f"{variable}=true" if os.environ.get(variable, "").lower() == "true" else None
