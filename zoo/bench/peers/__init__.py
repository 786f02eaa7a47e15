"""Models of other libraries, each compared with zoo's own of the same sizes; a library that is not there is said once."""
