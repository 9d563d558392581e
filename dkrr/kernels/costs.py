"""Seconds of elementwise work per entry, on one core.

Measured on 128 x 1024 strips of float64 with numpy 2.4 and scipy 1.17 on one core of an AMD EPYC. They need to be right
within a factor of about two.
"""

WRITE_SECONDS = 0.5e-9  # per entry of a product of narrow blocks, besides its flops
PASS_SECONDS = 0.2e-9  # one addition, product or clamp of a strip that is in cache
EXP_SECONDS = 0.85e-9
SQRT_SECONDS = 1.4e-9
TANH_SECONDS = 0.8e-9
POWER_SECONDS = 1.5e-9  # np.power with a fractional exponent
CITYBLOCK_SECONDS = 0.3e-9  # per feature, scipy.spatial.distance.cdist
HAMMING_SECONDS = 0.3e-9  # per feature, cdist
TABLE_SECONDS = 1.9e-9  # a count as a whole number, and what a table has for it
CHI2_SECONDS = 1.6e-9  # per feature, four passes and a division
CALLABLE_SECONDS = 100e-9  # a guess: nothing is known of a user's function before it has run
