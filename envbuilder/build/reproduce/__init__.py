"""Build twice with environment perturbations, and compare the results bit for bit."""
