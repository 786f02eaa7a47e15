"""The encodings, one file each, named as in recipes. A new file registers itself."""
