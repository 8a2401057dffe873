"""Ask upstream whether locked files and base images are still there, with the same bytes."""
