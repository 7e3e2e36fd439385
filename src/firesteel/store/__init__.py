"""What policies learned, kept from one process to the next."""
