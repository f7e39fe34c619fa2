"""Data sets from start to end: collected, stopped and gone on with, saved."""
