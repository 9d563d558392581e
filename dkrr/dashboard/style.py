"""Style of pages: colours of light and dark mode, pictures, boxes with facts."""

LIGHT = ("#1763a6", "#d9730d", "#2a9d6f", "#8250b5", "#b93a4b", "#0f8b8d", "#a07800", "#8a94a0", "#6b705c", "#111827")
DARK = ("#6db3f2", "#f4a259", "#5fd3a5", "#c297f0", "#ef7d8b", "#5fd0d2", "#e0bf4b", "#8a94a0", "#b5b9a2", "#f3f4f6")
STYLE = """
:root{color-scheme:light dark;--page:#fff;--text:#1f2933;--soft:#52606d;--line:#d5dbe1;--box:#f6f8fa;LIGHT}
@media(prefers-color-scheme:dark){:root{--page:#14171b;--text:#e4e7eb;--soft:#9aa5b1;--line:#343b44;--box:#1c2127;DARK}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1200px;padding:24px 32px 60px;background:var(--page);color:var(--text);
font:14px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:24px;margin:0 0 2px;overflow-wrap:anywhere}
h2{font-size:17px;margin:32px 0 8px;border-bottom:1px solid var(--line);padding-bottom:4px}
p{margin:6px 0}.soft{color:var(--soft)}.facts{display:flex;flex-wrap:wrap;gap:10px;margin:16px 0}
.facts div{background:var(--box);border:1px solid var(--line);border-radius:8px;padding:8px 14px;min-width:120px}
.facts b{display:block;font-size:18px;font-weight:600}.facts span{color:var(--soft);font-size:12px}
figure{margin:8px 0;display:inline-block;vertical-align:top;max-width:100%}
figcaption{font-weight:600;margin:0 0 4px 4px}
svg{max-width:100%;height:auto;display:block}.pictures{display:flex;flex-wrap:wrap;gap:8px 12px}
.axis{stroke:var(--soft);fill:none}.grid{stroke:var(--line);stroke-width:.7;fill:none}
.level{stroke:var(--soft);stroke-dasharray:5 4;fill:none}
.tick{font-size:11.5px;fill:var(--soft)}.label{font-size:12.5px;fill:var(--text)}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}.dots{fill:none;stroke-linecap:round}.missing{fill:var(--line)}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;font-size:12.5px;color:var(--soft);margin:0 0 4px 6px}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:5px;vertical-align:-1px}
table{font-size:13px}
pre{background:var(--box);border:1px solid var(--line);border-radius:6px;padding:10px 12px;
overflow-x:auto;white-space:pre-wrap}
@media print{body{max-width:none}}
"""


def style() -> str:
    """Styles of the page, with the colours of both modes."""
    found = STYLE
    for name, colours in (("LIGHT", LIGHT), ("DARK", DARK)):
        found = found.replace(name, ";".join(f"--c{k}:{colour}" for k, colour in enumerate(colours)))
    classes = "".join(
        f".f{k}{{fill:var(--c{k});background:var(--c{k})}}.s{k}{{stroke:var(--c{k})}}" for k in range(len(LIGHT))
    )
    return found + classes
