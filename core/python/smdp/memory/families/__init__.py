"""Model families, one file each, which convert the fields of a config.json to an Architecture.

Parameter counts match the classes of transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable

from smdp._core import Architecture
from smdp.memory.families import bert, gpt2, gpt_neox, llama, mistral, qwen, t5, vit
from smdp.memory.fields import Fields

# Maps model_type to the function that reads its config.json.
FAMILIES: dict[str, Callable[[Fields], Architecture]] = {
    "bert": bert.architecture,
    "gpt2": gpt2.architecture,
    "gpt_neox": gpt_neox.architecture,
    "llama": llama.architecture,
    "mistral": mistral.architecture,
    "mixtral": mistral.mixtral,
    "qwen2": qwen.qwen2,
    "qwen2_moe": qwen.qwen2_moe,
    "qwen3": qwen.qwen3,
    "qwen3_moe": qwen.qwen3_moe,
    "t5": t5.architecture,
    "vit": vit.architecture,
}
