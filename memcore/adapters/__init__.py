<<<<<<< HEAD
"""memcore under other frameworks: one package a framework, each imported by its users only."""
=======
"""memcore under other frameworks: one package a framework, imported only by whoever uses it."""
>>>>>>> main
