# needs: torch sklearn
# ranks: 2
import pytest

run(0)
assert accuracy > 0.85
if rank == 0:
    skip(1, "this rank is the other one")
else:
    epoch = 2
    with pytest.raises(RuntimeError, match="out of luck"):
        run(1)
