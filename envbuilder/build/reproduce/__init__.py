"""Build twice, the second time with environment perturbations, and compare bit for bit."""
