"""What a page shows as printed, compared with what its code prints.

Words are compared as they are, "…" stands for any text. Numbers agree to one percent; what differs between machines is
not compared: times, bytes, percentages, and numbers with an exponent, such as residuals.
"""

import re

_NUMBER = r"[-−]?\d[\d,]*(?:\.\d+)?"
_UNIT = r"(?:ns|µs|ms|s|min|h|d|[KMGT]i?B|kB|bytes|B|%|×)(?!\w)"
_MEASURED = rf"(?:{_NUMBER}\s?{_UNIT}\s?)+|{_NUMBER}e[-+]?\d+"
_PART = re.compile(rf"(?P<any>…)|(?P<measured>{_MEASURED})|(?P<number>{_NUMBER})|(?P<space>\s+)")
_CLOSE = 0.01


def differences(shown: str, printed: str) -> str | None:
    """Return in what a text that was printed differs from the one that a page shows, or None.

    Parameters
    ----------
    shown, printed : str
        Text of the page, and of the code's standard output.
    """
    wanted: list[float] = []
    pattern, end = "", 0
    for part in _PART.finditer(shown.strip()):
        pattern += re.escape(shown.strip()[end : part.start()])
        end = part.end()
        if part["any"]:
            pattern += r".*?"
        elif part["measured"]:
            pattern += rf"(?:{_MEASURED})" + (r"\s*" if part[0][-1].isspace() else "")
        elif part["space"]:
            pattern += r"\s+"
        else:
            pattern += rf"({_NUMBER})"
            wanted.append(_value(part[0]))
    found = re.fullmatch(pattern + re.escape(shown.strip()[end:]), printed.strip(), re.S)
    if found is None:
        return f"shown:\n{shown}\nprinted:\n{printed}"
    for one, other in zip(wanted, map(_value, found.groups()), strict=True):
        if abs(one - other) > _CLOSE * abs(one):
            return f"shown {one:g}, printed {other:g} in:\n{printed}"
    return None


def _value(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))
