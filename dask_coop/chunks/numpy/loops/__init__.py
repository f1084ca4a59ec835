"""The loops over NumPy chunks, compiled by Numba, which all modules of this folder import.

Without Numba there is another way for each: loop_table.py imports these modules where they are
there, and says for which chunks.
"""
