"""`horovod.tensorflow.elastic`."""

from __future__ import annotations

from smdp.compat.horovod.refusals import refuse_module

refuse_module("tensorflow.elastic")
