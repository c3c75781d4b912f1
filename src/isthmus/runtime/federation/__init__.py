"""Who takes part, and what they agreed on."""
