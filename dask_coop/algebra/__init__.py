"""Values: monoids and operations, states and how two combine, bins, and how a line is scanned."""
