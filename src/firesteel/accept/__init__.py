"""What a row is worth: the chance that it is accepted, if its parent is."""
