"""What keeps contents private: pure functions and the key file; the store applies them."""
