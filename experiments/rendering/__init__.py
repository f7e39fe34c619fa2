"""Pictures of what simulators show: the graphics library, and frames of stored episodes."""
