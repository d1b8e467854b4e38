"""Assembles a run, a prediction or a conversation from its config: the only package that knows all the parts."""
