"""memcore under other frameworks: one package a framework, imported only when it is used."""
