"""What Legation's own tests stand on, shipped for yours; it uses the public API only."""
