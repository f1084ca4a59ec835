"""Signals across chunks."""
