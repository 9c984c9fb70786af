"""`smdistributed.modelparallel.torch.nn.huggingface.gptneo`: name translations, not supported yet."""

from __future__ import annotations

from smdp.torch.model_parallel.unsupported_names import LaterModule

__getattr__ = LaterModule("nn.huggingface.gptneo").__getattr__
