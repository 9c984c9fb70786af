"""Partitions a model into pipeline stages.

from smdp.partition import Trace, assignments, partition
trace = Trace.read("trace.json")
found = partition(trace, ranks=4, microbatches=8, memory_cap=40e9, precision="bf16")
found.reason                        # the slowest stage, and why moving a unit would not help
print(assignments(trace, found))    # a line per stage
"""

from __future__ import annotations

from smdp.partition.assignments import assignments as assignments
from smdp.partition.assignments import stage_lines as stage_lines
from smdp.partition.partition import Partition as Partition
from smdp.partition.partition import PartitionStage as PartitionStage
from smdp.partition.partition import partition as partition
from smdp.partition.trace import Tied as Tied
from smdp.partition.trace import Trace as Trace
from smdp.partition.trace import Unit as Unit

__all__ = ["Partition", "PartitionStage", "Tied", "Trace", "Unit", "assignments", "partition", "stage_lines"]
