"""Everything that speaks to the CUDA driver and compiler."""
