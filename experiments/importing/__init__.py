"""Bringing in files of others."""
