import smdp

step, loss, accuracy = 200, 0.25, 0.9
run()
assert [definition["Name"] for definition in definitions][-1] == "smdp:accuracy"
