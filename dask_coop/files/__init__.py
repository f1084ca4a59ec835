"""Read what is stored in chunks, such as Zarr arrays, by the threads that need it."""
