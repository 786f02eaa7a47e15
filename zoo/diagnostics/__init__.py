"""What encodings do, seen from outside: measured through the protocol, and drawn."""
