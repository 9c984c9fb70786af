"""`smdistributed.modelparallel.torch.nn.huggingface.bert`: name translations, not supported yet."""

from __future__ import annotations

from smdp.torch.model_parallel.unsupported_names import LaterModule

__getattr__ = LaterModule("nn.huggingface.bert").__getattr__
