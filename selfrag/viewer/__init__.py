"""The page that shows the tree of candidates of an answer and ranks it again: of a server, and of recorded traces."""
