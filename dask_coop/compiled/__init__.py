"""Loops that Numba compiles, and the folders in which machine code is kept."""
