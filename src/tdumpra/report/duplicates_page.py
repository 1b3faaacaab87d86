"""Near-duplicate pairs as one HTML page that a person can go through: both pictures, side by side, nothing external."""

from __future__ import annotations

from html import escape

from tdumpra.data.audit import Audit
from tdumpra.data.duplicates import DuplicatePair
from tdumpra.data.manifest import Record
from tdumpra.errors import BrokenImageError
from tdumpra.report import kit

SHOWN_PAIRS = 100  # about 2 MB of thumbnails

_THUMBNAIL = 240  # pixels of the longer side


def duplicates_page(audit: Audit) -> str:
    """Return the page of an audit: pairs that cross the split first, then the most similar."""
    found = audit.near_duplicates
    if found is None:
        raise ValueError("this audit did not search for near-duplicates")
    ordered = sorted(found.pairs, key=lambda pair: (not audit.crosses(pair), -pair.similarity))
    crossing = sum(map(audit.crosses, found.pairs))
    summary = f"{_count(len(found.pairs), 'pair')} of look-alike images carry different groups"
    summary += f"; {crossing:,} of them {'stands' if crossing == 1 else 'stand'} on two sides of the split"
    facts = [audit.manifest.name, f"{len(audit.manifest):,} images", f"protocol {audit.split.protocol}"]
    facts.append(f"seed {audit.split.seed}")
    if len(ordered) > SHOWN_PAIRS:
        facts.append(f"the first {SHOWN_PAIRS} pairs are shown")
    body = "\n".join(_pair(audit, pair) for pair in ordered[:SHOWN_PAIRS])
    empty = '<p class="empty">No two images of different groups look alike.</p>'
    return _PAGE.format(
        title="Near-duplicate images",
        summary=escape(summary),
        facts=" · ".join(map(escape, facts)),
        style=_STYLE,
        pairs=body or empty,
    )


def _pair(audit: Audit, pair: DuplicatePair) -> str:
    facts = audit.pair_document(pair)
    badges = [f'<span class="badge">similarity {facts["similarity"]:.2f}</span>']
    if audit.crosses(pair):
        badges.append(f'<span class="badge leak">{" ↔ ".join(facts["splits"])}</span>')
    else:
        badges.append(f'<span class="badge">both in {facts["splits"][0]}</span>')
    if facts["labels"][0] != facts["labels"][1]:
        badges.append('<span class="badge leak">labels differ</span>')
    figures = "".join(
        _figure(audit, audit.manifest.records[row], facts["labels"][side], facts["splits"][side])
        for side, row in enumerate(pair[:2])
    )
    return f'<article><header>{"".join(badges)}</header><div class="two">{figures}</div></article>'


def _figure(audit: Audit, record: Record, label: str, part: str) -> str:
    name = escape(record.id)
    try:
        source = kit.data_uri(audit.manifest.reader(record), size=_THUMBNAIL)
        picture = f'<img src="{source}" alt="{name}" loading="lazy">'
    except BrokenImageError as error:  # the file changed since the search
        picture = f'<p class="empty">{escape(str(error))}</p>'
    return (
        f'<figure>{picture}<figcaption><b title="{name}">{name}</b>'
        f"<dl><dt>class</dt><dd>{escape(label)}</dd><dt>group</dt><dd>{escape(record.group)}</dd>"
        f"<dt>split</dt><dd>{part}</dd></dl></figcaption></figure>"
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<p class="summary">{summary}.</p>
<p class="facts">{facts}</p>
<p>Where a pair shows one lesion, keep its line in <code>near_duplicates.csv</code> and pass that file as
<code>--duplicates</code>: the two groups become one, and no split will part them.</p>
<main>
{pairs}
</main>
</body>
</html>
"""

_STYLE = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #fff; --ink: #1b1f24; --soft: #5b6570; --line: #d9dee4;
  --alert: #b3261e; --alert-ground: #fdecea; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #14171b; --card: #1d2126; --ink: #e8eaed; --soft: #9aa4af; --line: #323941;
    --alert: #ffb4ab; --alert-ground: #4a1512; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 2rem 1.25rem 4rem; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.6rem; }
.summary { margin: .4rem 0 0; font-size: 1.05rem; }
.facts { margin: .2rem 0 0; color: var(--soft); }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr)); gap: 1rem;
  margin-top: 1.5rem; }
article { padding: .9rem; background: var(--card); border: 1px solid var(--line); border-radius: .6rem; }
header { display: flex; flex-wrap: wrap; gap: .4rem; margin-bottom: .7rem; }
.badge { padding: .05rem .55rem; border: 1px solid var(--line); border-radius: 1rem; color: var(--soft);
  font-size: .8rem; }
.badge.leak { border-color: transparent; background: var(--alert-ground); color: var(--alert); font-weight: 600; }
.two { display: grid; grid-template-columns: 1fr 1fr; gap: .8rem; }
figure { margin: 0; min-width: 0; }
img { display: block; width: 100%; aspect-ratio: 4 / 3; object-fit: contain; border-radius: .35rem; background: #000; }
figcaption b { display: block; margin: .45rem 0 .2rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
dl { display: grid; grid-template-columns: auto 1fr; gap: 0 .7rem; margin: 0; font-size: .85rem; }
dt { color: var(--soft); }
dd { margin: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.empty { color: var(--soft); }
"""
