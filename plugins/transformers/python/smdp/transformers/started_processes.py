"""Whether training arguments know of all processes that were started."""

from __future__ import annotations

import torch.distributed as dist
from transformers import TrainingArguments

from smdp.environments import detect


def check_started(plugin: str, args: TrainingArguments) -> None:
    """Refuse arguments by which each process would train by itself.

    Args:
        plugin: Who asks, for the message.
        args: The arguments; their process group has been made, if there is to be one.

    Raises:
        ValueError: They know of one process where a launcher started several.
        smdp.ConfigError: The launcher's variables make no sense.
    """
    if args.world_size > 1:
        return
    started = dist.get_world_size() if dist.is_initialized() else detect(needs_master=False).world_size
    if started > 1:
        raise ValueError(
            f"[smdp] the plugin {plugin}: {started} processes were started, but the arguments, a"
            f" {type(args).__module__}.{type(args).__name__}, know of one: each would train by itself."
            ' Use smdp.transformers.TrainingArguments, or give ddp_backend="smdp" or use_cpu=True.'
        )
