"""Run tests with the BLAS kernels of other processors, and with one thread: .ci/kernels.py TEST...

OPENBLAS_CORETYPE names kernels. OpenBLAS takes others where the processor lacks their instructions or the name is not
of its architecture, and does not say so: a new process says which it took.
"""

import os
import subprocess
import sys
import time

NAMES = ("SkylakeX", "Haswell", "Sandybridge")  # AVX512, AVX2, AVX
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
ASK = """
import numpy, scipy.linalg, threadpoolctl
pools = [p for p in threadpoolctl.threadpool_info() if p["user_api"] == "blas"]
print(*sorted({p.get("architecture", p["internal_api"]) for p in pools}), sep=" and ")
"""


def kernels(settings: dict[str, str]) -> str:
    """Return the kernels that NumPy and SciPy take with these environment variables."""
    return subprocess.check_output([sys.executable, "-c", ASK], env=os.environ | settings, text=True).strip()


def run(title: str, settings: dict[str, str], tests: list[str]) -> bool:
    """Run the tests with these environment variables; return whether all pass."""
    print(f"kernels: {title}", flush=True)
    start = time.monotonic()
    command = [sys.executable, "-m", "pytest", "--quiet", *tests]
    code = subprocess.run(command, env=os.environ | settings, check=False).returncode
    print(f"kernels: {title}: {'failed' if code else 'passed'}, {time.monotonic() - start:.0f} s", flush=True)
    return code == 0


def main(tests: list[str]) -> None:
    """Run the tests once for each kernels but the processor's own, and with its own and one thread."""
    own, passed = kernels({}), []
    for name in NAMES:
        settings = {"OPENBLAS_CORETYPE": name}
        found = kernels(settings)
        if found == own:
            print(f"kernels: {name}: left out, since this processor's own, {own}, are taken")
        elif found != name:
            print(f"kernels: {name}: left out, since this processor lacks them: {found} are taken")
        else:
            passed.append(run(name, settings, tests))
    passed.append(run(f"{own}, one thread", ONE_THREAD, tests))
    sys.exit(not all(passed))


if __name__ == "__main__":
    main(sys.argv[1:])
