"""Totals by region of a CSV file, by way of a database."""

import csv
import json
import sqlite3

database = sqlite3.connect(":memory:")
database.execute("CREATE TABLE sales (region TEXT, cents INTEGER)")
with open("sales.csv", newline="", encoding="utf-8") as file:
    rows = [(row["region"], int(row["cents"])) for row in csv.DictReader(file)]
database.executemany("INSERT INTO sales VALUES (?, ?)", rows)

query = "SELECT region, count(*), sum(cents), max(cents) FROM sales GROUP BY region ORDER BY region"
report = {
    region: {"sales": sales, "cents": cents, "largest": largest}
    for region, sales, cents, largest in database.execute(query)
}
with open("report.json", "w", encoding="utf-8") as file:
    json.dump(report, file, indent=2)
print(len(rows), "rows read")
