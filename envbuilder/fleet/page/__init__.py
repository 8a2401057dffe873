"""The page of a fleet: one self-contained HTML file with all nodes of a run."""
