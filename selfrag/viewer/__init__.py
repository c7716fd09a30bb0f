"""The viewer: a trace as an SVG tree, and as a page that ranks it again."""
