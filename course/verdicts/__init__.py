"""What a lesson says of its results: measured values in, rows of a table or a sentence out. One module a lesson."""
