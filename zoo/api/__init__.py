"""The commands of the command line as Python functions, and what they return."""
