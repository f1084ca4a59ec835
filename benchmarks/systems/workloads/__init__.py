"""Scripts after other people's threads, which know nothing of this library."""
