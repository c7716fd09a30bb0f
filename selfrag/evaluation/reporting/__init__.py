"""What runs become for a reader: plots, an HTML page with every item's trace, and the results page of the documents."""
