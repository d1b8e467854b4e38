"""Models: the reference decoder, Hugging Face folders, and what a step of them costs."""
