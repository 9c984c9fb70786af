"""`smdistributed.modelparallel.torch.optimizers`: fused optimizers, which say when they are made."""

from __future__ import annotations

from smdp.torch.model_parallel.smp_api.later import comes_later

FusedAdam = comes_later("optimizers.FusedAdam", "fused optimizers")
FusedLAMB = FusedLamb = comes_later("optimizers.FusedLAMB", "fused optimizers")
FusedNovoGrad = comes_later("optimizers.FusedNovoGrad", "fused optimizers")
