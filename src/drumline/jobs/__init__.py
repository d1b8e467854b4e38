"""Jobs: work that is asked for from a program, and done by processes of its own."""
