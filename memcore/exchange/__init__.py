"""Export and import of sessions as JSON lines."""
