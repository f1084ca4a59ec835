"""Public functions: each one only checks its arguments and names the operation."""
