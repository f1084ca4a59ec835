"""Histograms of one or several coordinates."""
