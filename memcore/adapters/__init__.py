"""memcore under other frameworks: one package a framework, each imported only by whoever uses it."""
