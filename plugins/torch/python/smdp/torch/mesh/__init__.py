"""Who is where: the ranks of each axis, and their process groups."""
