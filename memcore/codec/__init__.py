"""Encodings of the file format: keys, sealed values, audit entries."""
