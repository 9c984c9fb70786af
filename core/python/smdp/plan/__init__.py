"""Finds layouts of a model that fit on given machines and estimates their speed, by formula.

from smdp import memory
from smdp.plan import Cluster, plan, snippet
model = memory.read_config("config.json")
found = plan(model, Cluster(hosts=16, ranks_per_host=8), batch=512, sequence=512)
found.options[0].candidate.describe()    # the recommended layout
snippet.python(found.options[0].candidate, found.cluster)    # as a script
"""

from __future__ import annotations

from smdp.plan.advice import advice as advice
from smdp.plan.candidate import Candidate as Candidate
from smdp.plan.cluster import Cluster as Cluster
from smdp.plan.cores import step_on_cores as step_on_cores
from smdp.plan.search import Option as Option
from smdp.plan.search import Plan as Plan
from smdp.plan.search import Rejected as Rejected
from smdp.plan.search import plan as plan
from smdp.plan.step_time import StepTime as StepTime

__all__ = [
    "Candidate",
    "Cluster",
    "Option",
    "Plan",
    "Rejected",
    "StepTime",
    "advice",
    "plan",
    "step_on_cores",
]
