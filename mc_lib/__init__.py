"""How a tiny transformer learns to look up variables and to add modulo p."""
