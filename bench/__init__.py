"""Legation measured against its targets and against others, in one run. See README.md."""
