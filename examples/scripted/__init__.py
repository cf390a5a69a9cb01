"""Scripted models for the examples: no key, no network."""
