"""Row families of the file, one module each."""
