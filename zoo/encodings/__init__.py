"""One file per encoding, named as recipes name it. A file here changes nothing elsewhere."""
