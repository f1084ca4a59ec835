"""Cross-chunk steps of pictures."""
