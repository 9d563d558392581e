"""Kill fits and damage stores at random, and compare what happens then with the undisturbed result.

Its results: docs/results/chaos.md.
"""
