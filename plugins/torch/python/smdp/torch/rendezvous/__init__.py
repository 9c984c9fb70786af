"""From torch's store to connected ranks."""
