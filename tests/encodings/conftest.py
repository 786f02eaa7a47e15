"""Tests of encodings; the helpers beside this file can be imported from the folders below it, too."""
