# needs: torch
# ranks: 2
run()
assert losses[-1] < losses[0]
assert 0.5 < own / 1e6 < 6  # by time, which is noisy on a busy machine
assert round(parameters / 1e6, 1) == 6.3 and round(16 * parameters / 1e6) == 101
