"""From image files to framed pixels: decoding, masks, framing, caches."""
