"""Whether training arguments know of all processes that were started."""

from __future__ import annotations

import torch.distributed as dist
from accelerate import DistributedType
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


def check_wrapped(plugin: str, args: TrainingArguments) -> None:
    """Refuse arguments by which Accelerate would leave the model of each rank to itself.

    Args:
        plugin: Who asks, for the message.
        args: As above.

    Raises:
        ValueError: There are several ranks, and Accelerate takes them for single ones: it found no GPU, and
            was not told to use none.
    """
    known = args.distributed_state
    if args.world_size > 1 and known is not None and known.distributed_type == DistributedType.NO:
        raise ValueError(
            f"[smdp] the plugin {plugin}: Accelerate would train each of the {args.world_size} ranks by"
            f" itself: it has no GPU, and the arguments, with ddp_backend={args.ddp_backend!r}, do not say"
            ' so. Give use_cpu=True, or ddp_backend="smdp".'
        )
