"""Row families of the file, one module per family."""
