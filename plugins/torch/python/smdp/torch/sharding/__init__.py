"""Optimizer state that exists once per group of replicas."""
