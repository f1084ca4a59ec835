"""Operations on one NumPy chunk; backend.py has all functions that the graph calls."""
