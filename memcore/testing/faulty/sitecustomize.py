"""Put every store of a child process behind fail points; see ``memcore.testing.faults``."""

from memcore.testing.faults import install

install()
