"""What the documentation site needs beyond Markdown: equations as MathML, and pages that are written by the code."""
