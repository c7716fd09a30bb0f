"""The `critic` command line: one file a command, arguments in, text out."""
