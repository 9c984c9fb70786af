from smdp.partition import Trace, Unit

Trace(units=tuple(Unit(name=f"h.{i}", forward=1e-3) for i in range(8))).write("trace.json")
run()
assert len(found.stages) == 4
