"""Build twice in different surroundings, and compare the results bit for bit."""
