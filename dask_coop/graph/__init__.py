"""The cross-chunk step as a graph of tasks."""
