"""memcore under other frameworks: one package a framework, imported only by whoever uses it."""
