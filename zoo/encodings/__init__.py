"""One file per encoding, named as in recipes. A new file here changes nothing elsewhere."""
