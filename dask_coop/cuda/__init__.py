"""Call the CUDA driver and compiler."""
