"""Who starts the workers, and what world a process is part of. Nothing here imports torch before a child runs."""
