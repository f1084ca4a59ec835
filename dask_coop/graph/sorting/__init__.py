"""Sort the elements of several chunks without gathering them."""
