"""Moments of several variables, and weighted ones."""
