"""memcore under other frameworks: one package a framework, each imported by its users only."""
