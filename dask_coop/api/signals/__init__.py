"""Filters of signals."""
