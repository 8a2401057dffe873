"""Files in which projects list their requirements, read into one form."""
