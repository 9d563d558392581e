"""Transformers of scikit-learn in front of a model: fitted to rows of any kind, applied block by block, described.

The modules are imported where a transformer is used: a worker process that forms tiles needs none of them.
"""
