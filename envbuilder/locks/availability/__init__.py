"""Check upstream that locked files and base images still exist with the same bytes."""
