"""What cells run on, one engine per file: this machine, a cluster's scheduler, Ray. None of them is ours."""
