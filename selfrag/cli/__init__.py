"""The command line, one file for each command. Parses options and prints; decides nothing about decoding."""
