"""Values: monoids and operations, states and how they combine, bins, and the options of scans."""
