"""What a training makes small: one file per loss."""
