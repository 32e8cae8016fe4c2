"""unlearn-run: make a language model forget, and prove what was forgotten and what was kept."""

__version__ = "0.1.0"
