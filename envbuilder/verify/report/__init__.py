"""Reports: their form, checks from outside, history, comparison, the table on a terminal."""
