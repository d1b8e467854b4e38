"""Where a run's numbers go: metrics.jsonl always, the console, the log files, and the report made of them."""
