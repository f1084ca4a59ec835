"""The benchmarks of whole systems: clusters and the GPUs of one machine."""
