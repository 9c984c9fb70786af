"""Whether training arguments know of all processes that were started."""

from __future__ import annotations

import torch.distributed as dist
from accelerate import DistributedType
from transformers import TrainingArguments

from smdp.environments import detect, find
from smdp.environments.choice import warn_alone
from smdp.environments.single import SingleProcess


def check_started(plugin: str, args: TrainingArguments) -> None:
    """Refuse arguments by which processes would not know of each other; warn in a process that trains alone.

    Args:
        plugin: Who asks, for the message.
        args: The arguments; their process group has been made, if there is to be one.

    Raises:
        ValueError: They know of one process where a launcher started several; or of several, and Accelerate
            takes them for single ones: it found no GPU, and was not told to use none.
        smdp.ConfigError: The launcher's variables make no sense.
    """
    if args.world_size > 1:
        known = args.distributed_state
        if known is not None and known.distributed_type == DistributedType.NO:
            raise ValueError(
                f"[smdp] the plugin {plugin}: Accelerate would take each of the {args.world_size} ranks for a"
                " process of its own: it has no GPU, and the arguments, with"
                f" ddp_backend={args.ddp_backend!r}, do not say so."
                ' Give use_cpu=True, or ddp_backend="smdp".'
            )
        return
    started = dist.get_world_size() if dist.is_initialized() else detect(needs_master=False).world_size
    if started > 1:
        raise ValueError(
            f"[smdp] the plugin {plugin}: {started} processes were started, but the arguments, a"
            f" {type(args).__module__}.{type(args).__name__}, know of one: each would train by itself."
            ' Use smdp.transformers.TrainingArguments, or give ddp_backend="smdp".'
        )
    if find() is SingleProcess:
        warn_alone()
