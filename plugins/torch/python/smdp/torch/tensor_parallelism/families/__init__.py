"""How the layers of model families are divided, a file for each layout of attention."""
