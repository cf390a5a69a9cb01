"""Care of a file: check, repair plan, doctor, backup, salvage."""
