"""The command: one small module a command, each with `register(app)`; the only room that prints."""
