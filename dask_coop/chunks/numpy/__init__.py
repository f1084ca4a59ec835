"""What is done to one NumPy chunk; backend.py has all that the graph calls."""
