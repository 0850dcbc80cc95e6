"""What is asked: one frozen dataclass a family, which validates itself, prints as a line and parses back."""
