# ranks: 2
run()
assert (gradient == 0.5).all()
