"""A plug-in with a kind of data that zoo does not have: series of vectors, and the next vector."""
