"""Functions of one CuPy chunk; backend.py has all that graphs call, and imports CuPy."""
