"""The floor: errors, checks, files, text of strangers, plug-ins and progress. Knows nothing of what stands above it."""
