"""`smdistributed.modelparallel`: SMP on smdp's pipelines."""

# The last release of SMP 1.x. transformers checks that the version is at least 1.10.
__version__ = "1.15.0"
