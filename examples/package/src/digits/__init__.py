"""Digits of 8×8 pixels, and a net that reads them."""
