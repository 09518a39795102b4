"""The gallery of mistakes: programs with one mistake each, and all that is known of them.

NAME.py is a program with a mistake. `table.toml` says of each what one sees, why, and the edits that repair it. What is
made of the table: TROUBLESHOOTING.md and doctor/entries.json (`guide.py`), and the site's pages and search.
`python -m gallery` runs the programs.
"""
