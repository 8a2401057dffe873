"""Locate, resolve, fetch, store and install the packages that make up an environment.

This package may import `profiles` and the packages in the layers below `profiles`.
"""
