"""The life of a call: operands, choice, plan, launch, explanation."""
