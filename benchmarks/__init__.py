"""The library on real data: the QM9 molecules, the demonstration of ``make demo``, and measurements."""
