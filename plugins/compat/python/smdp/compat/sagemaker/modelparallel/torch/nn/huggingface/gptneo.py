"""`smdistributed.modelparallel.torch.nn.huggingface.gptneo`: translations of names, which come later."""

from __future__ import annotations

from smdp.torch.model_parallel.unsupported_names import LaterModule

__getattr__ = LaterModule("nn.huggingface.gptneo").__getattr__
