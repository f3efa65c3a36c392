"""What a finished run says: recommendations, newcomers, reasons, files."""
