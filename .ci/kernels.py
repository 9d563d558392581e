"""Run tests with the BLAS kernels of other processors, and with one thread: .ci/kernels.py TEST...

OPENBLAS_CORETYPE names kernels. Where the processor lacks their instructions, some releases of OpenBLAS take others and
do not say so, and some take them, and the process is killed: a new process says which it took, and uses them.
"""

import os
import signal
import subprocess
import sys
import time

NAMES = ("SkylakeX", "Haswell", "Sandybridge")  # AVX512, AVX2, AVX
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
ASK = """
import numpy, scipy.linalg, threadpoolctl
for dtype in ("float32", "float64"):
    A = numpy.eye(300, dtype=dtype)
    scipy.linalg.cholesky(A @ A)
pools = [p for p in threadpoolctl.threadpool_info() if p["user_api"] == "blas"]
print(*sorted({p.get("architecture", p["internal_api"]) for p in pools}), sep=" and ")
"""


def kernels(settings: dict[str, str]) -> str | None:
    """Return the kernels that NumPy and SciPy take with these environment variables; None if the processor cannot."""
    command = [sys.executable, "-c", ASK]
    process = subprocess.run(command, env=os.environ | settings, stdout=subprocess.PIPE, text=True, check=False)
    if process.returncode == -signal.SIGILL:
        return None
    process.check_returncode()
    return process.stdout.strip()


def run(title: str, settings: dict[str, str], tests: list[str]) -> list[str]:
    """Run the tests with these environment variables; return a line for each that fails."""
    print(f"kernels: {title}", flush=True)
    start, failures = time.monotonic(), []
    command = [sys.executable, "-m", "pytest", "--quiet", *tests]
    with subprocess.Popen(command, env=os.environ | settings, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if line.startswith(("FAILED ", "ERROR ")):
                failures.append(f"kernels: {title}: {line.rstrip()}")
    if process.returncode and not failures:
        failures.append(f"kernels: {title}: pytest ended with exit code {process.returncode}")
    print(f"kernels: {title}: {'failed' if failures else 'passed'}, {time.monotonic() - start:.0f} s", flush=True)
    return failures


def main(tests: list[str]) -> None:
    """Run the tests once for each kernels but the processor's own, and with its own and one thread."""
    own, failures = kernels({}), []
    for name in NAMES:
        settings = {"OPENBLAS_CORETYPE": name}
        found = kernels(settings)
        if found == own:
            print(f"kernels: {name}: left out, since this processor's own, {own}, are taken")
        elif found != name:
            print(f"kernels: {name}: left out, since this processor lacks them: {found or 'none'} are taken")
        else:
            failures += run(name, settings, tests)
    failures += run(f"{own}, one thread", ONE_THREAD, tests)
    print(*failures, sep="\n")  # once more at the end: the run that they are from may be ten minutes ago
    sys.exit(bool(failures))


if __name__ == "__main__":
    main(sys.argv[1:])
