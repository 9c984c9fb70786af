"""Finds divisions of modules for which there is neither a rule nor a plan, and tries them in one process."""
