"""What is asked: kinds of task by the fields of their items, strict reading of files, evidence from an index."""
