"""Tables of samples: opening and streaming them, their splits, classes and corrupt rows."""
