# needs: torch
# ranks: 2
run()
assert losses[-1] < losses[0]
assert 2 < own / 1e6 < 24  # by time, which is noisy on a busy machine
assert round(parameters / 1e6, 1) == 25.2 and round(16 * parameters / 1e6) == 403
