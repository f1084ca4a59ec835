"""Histograms of one and of several coordinates."""
