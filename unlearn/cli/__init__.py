"""The command line: what was typed is composed, checked whole, and handed to the flow."""
