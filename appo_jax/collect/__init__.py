"""Collectors: policies that make data sets."""
