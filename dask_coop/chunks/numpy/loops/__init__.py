"""The loops over NumPy chunks, compiled by Numba, which all modules of this folder import.

Without Numba, NumPy does the same work. loop_table.py imports these modules if Numba is installed,
and decides for which chunks.
"""
