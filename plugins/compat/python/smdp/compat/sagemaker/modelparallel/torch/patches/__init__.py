"""`smdistributed.modelparallel.torch.patches`: of activation checkpointing."""
