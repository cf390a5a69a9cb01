"""Adapters of memcore for other frameworks, one package each, imported only when used."""
