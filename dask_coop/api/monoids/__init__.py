"""Monoids of users: their fields, their laws, and NumPy's ufuncs."""
