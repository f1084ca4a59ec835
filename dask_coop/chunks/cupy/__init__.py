"""What is done to one CuPy chunk; backend.py has all that the graph calls, and imports CuPy."""
