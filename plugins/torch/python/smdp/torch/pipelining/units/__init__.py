"""Units, which are modules that are never cut, and calls of units."""
