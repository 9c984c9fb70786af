"""`horovod.common.elastic`."""

from __future__ import annotations

from smdp.compat.horovod.refusals import refuse

refuse("horovod.common.elastic")
