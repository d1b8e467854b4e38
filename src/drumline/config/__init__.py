"""What a run is: one schema for YAML, overrides, Python and REST, and how it is read."""
