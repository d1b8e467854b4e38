"""Engine: the loop and its guarantees."""
