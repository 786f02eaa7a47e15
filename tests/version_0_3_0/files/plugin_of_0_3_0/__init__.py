"""A plug-in of zoo: the folders mirror zoo's own, and a file's name is what a recipe calls it."""
