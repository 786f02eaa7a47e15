"""A plug-in for `zoo fit` with a callback that measures steps on a GPU."""
