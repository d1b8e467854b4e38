"""Prediction: each row once, in order, on all devices, whatever is killed meanwhile."""
