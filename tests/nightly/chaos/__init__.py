"""Kill fits and damage stores at random, and compare what happens then with the undisturbed result (docs/chaos.md)."""
