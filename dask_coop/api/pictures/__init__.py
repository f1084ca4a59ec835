"""Public functions of pictures: connected regions, and measurements of these."""
