"""What runs in the interpreters that a watched command starts; it imports nothing of ours."""
