"""Statistics, scans and quantiles of groups."""
