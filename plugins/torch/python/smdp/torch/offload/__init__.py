"""Offloading: saved tensors and optimizer states that leave memory until they are needed again."""
