"""The modules that hold a slice of a layer."""
