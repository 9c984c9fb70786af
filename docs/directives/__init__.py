"""Sphinx directives that make reference pages from the code itself."""
