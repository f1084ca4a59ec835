"""What tests share: clusters, GPUs that are none, and random arrays."""
