"""Run the cross-chunk step as messages between the workers of a cluster."""
