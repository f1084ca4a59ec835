"""Decode stored chunks on a GPU."""
