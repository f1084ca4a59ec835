"""The steps around a public call: labels, units, kinds of array, fallbacks and results."""
