# needs: torch
# ranks: 2
run(0)
assert dist.get_backend() == "smdp" and dist.get_world_size() == 2
dist.destroy_process_group()
