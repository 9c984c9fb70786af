"""Reduction of gradients over replicas and tied weights, and separate computation of weight gradients."""
