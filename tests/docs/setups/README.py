# needs: torch
# ranks: 2
run()
assert gradient.tolist() == [0.5] * 4
