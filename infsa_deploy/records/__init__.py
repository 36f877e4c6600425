"""What comes out: frozen records with a JSON round trip. Units are part of the names."""
