"""`smdistributed.modelparallel.torch.nn.huggingface.roberta`: name translations, not supported yet."""

from __future__ import annotations

from smdp.torch.model_parallel.unsupported_names import LaterModule

__getattr__ = LaterModule("nn.huggingface.roberta").__getattr__
