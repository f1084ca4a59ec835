"""The public functions: each checks its arguments and names the operation, and nothing else."""
