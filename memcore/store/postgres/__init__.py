"""PostgreSQL as the engine: the ordered map in a schema of a database, for many processes."""
