"""`smdistributed.modelparallel`: SMP on smdp's pipelines."""

# The last of SMP 1.x; transformers compares it with 1.10.
__version__ = "1.15.0"
