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
    facts = [audit.manifest.name, f"{len(audit.manifest):,} images", audit.split.words]
    if len(ordered) > SHOWN_PAIRS:
        facts.append(f"the first {SHOWN_PAIRS} pairs are shown")
    body = "\n".join(_pair(audit, pair) for pair in ordered[:SHOWN_PAIRS])
    empty = '<p class="muted">No two images of different groups look alike.</p>'
    return _PAGE.format(
        title="Near-duplicate images",
        summary=escape(summary),
        facts=" · ".join(map(escape, facts)),
        style=(kit.TEMPLATES / "style.css").read_text(encoding="utf-8") + _STYLE,
        pairs=body or empty,
    )


def _pair(audit: Audit, pair: DuplicatePair) -> str:
    facts = audit.pair_document(pair)
    badges = [f'<span class="badge">similarity {facts["similarity"]:.2f}</span>']
    if audit.crosses(pair):
        badges.append(f'<span class="badge bad">{" ↔ ".join(facts["splits"])}</span>')
    else:
        badges.append(f'<span class="badge">both in {facts["splits"][0]}</span>')
    if facts["labels"][0] != facts["labels"][1]:
        badges.append('<span class="badge bad">labels differ</span>')
    figures = "".join(
        _figure(audit, audit.manifest.records[row], facts["labels"][side], facts["splits"][side])
        for side, row in enumerate(pair[:2])
    )
    return f'<article><header class="badges">{"".join(badges)}</header><div class="two">{figures}</div></article>'


def _figure(audit: Audit, record: Record, label: str, part: str) -> str:
    name = escape(record.id)
    try:
        source = kit.data_uri(audit.manifest.reader(record), size=_THUMBNAIL)
        picture = f'<img src="{source}" alt="{name}" loading="lazy">'
    except BrokenImageError as error:  # the file changed since the search
        picture = f'<p class="muted">{escape(str(error))}</p>'
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
<div class="page">
<h1>{title}</h1>
<p class="lead">{summary}.</p>
<p class="muted">{facts}</p>
<p>Where a pair shows one lesion, keep its line in <code>near_duplicates.csv</code> and pass that file as
<code>--duplicates</code>: the two groups become one, and no split will part them.</p>
<main>
{pairs}
</main>
</div>
</body>
</html>
"""

_STYLE = """
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 28rem), 1fr)); gap: 1rem;
  margin-top: 1.5rem; }
main > * + * { margin-top: 0; }
article { padding: .9rem; background: var(--card); border: 1px solid var(--line); border-radius: .6rem; }
.badges { margin: 0 0 .7rem; }
.two { display: grid; grid-template-columns: 1fr 1fr; gap: .8rem; }
.two img { width: 100%; aspect-ratio: 4 / 3; object-fit: contain; border-radius: .35rem; background: #000; }
figcaption b, dd { display: block; margin: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
  color: var(--ink); }
dl { display: grid; grid-template-columns: auto 1fr; gap: 0 .7rem; margin: .2rem 0 0; }
"""
