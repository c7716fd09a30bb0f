"""Models that search by writing tags, as Search-R1 and its relatives: decoder, model, server and evaluation."""
