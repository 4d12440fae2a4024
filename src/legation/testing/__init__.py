"""Help for tests: Legation's own stand on it, and it is shipped for yours. It uses the public API only."""
