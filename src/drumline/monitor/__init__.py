"""Watching GPUs and runs: sampler, history, alerts, Prometheus, live view. Imports no torch."""
