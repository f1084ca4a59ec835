"""Statistics, scans and quantiles by group."""
