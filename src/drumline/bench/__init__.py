"""Measures: step time, collectives, the loader; results are files that the torch-free side reads."""
