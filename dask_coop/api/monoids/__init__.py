"""Users' monoids: their fields and laws, and NumPy's ufuncs as monoids."""
