"""The command line's verbs."""
