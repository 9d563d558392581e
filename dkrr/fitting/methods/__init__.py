"""Ways to solve, a module for each: its candidates, its words and its execution."""

import dkrr.planning  # noqa: F401  (imports these modules itself, for now)
