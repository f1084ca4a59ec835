"""Read arrays that are stored in chunks, by the threads that need them."""
