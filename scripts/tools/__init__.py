"""What keeps the repository in order: environment, pages, pictures, results, conformance."""
