# ranks: 2
run()
assert world.size == 2 and (gradient == 0.5).all()
