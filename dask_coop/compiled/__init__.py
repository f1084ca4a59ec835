"""Compile loops by Numba, and keep their machine code on disk."""
