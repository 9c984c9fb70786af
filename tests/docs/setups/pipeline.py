run()
assert result.bubble < 0.2 and best.name
