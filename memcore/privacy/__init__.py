"""What keeps content from those who should not see or change it: pure, and below the store."""
