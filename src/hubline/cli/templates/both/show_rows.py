"""Print the rows of the table."""

import sqlite3

database = sqlite3.connect("data/readings.db")
for row in database.execute("SELECT device, celsius, fahrenheit FROM readings ORDER BY device, celsius"):
    print(*row)
