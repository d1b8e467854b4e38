"""How the store's shape has come about, step by step."""
