"""Which prices changed between two moments: chDB joins a topic with itself, read over HTTP as Arrow and as JSON lines."""
import os
import sys

import chdb


def prices(moment: str, form: str, clickhouse_format: str) -> str:
    """A price of a key is its newest record."""
    url = f"http://{os.environ['FREEZEFRAME_HTTP']}/v1/records/prices?at={moment}&format={form}"
    newest = "argMax(value, (timestamp, offset))"
    return f"SELECT key, {newest} AS price FROM url('{url}', {clickhouse_format}) GROUP BY key"


def changed(form: str, clickhouse_format: str) -> str:
    before, after = (prices(moment, form, clickhouse_format) for moment in sys.argv[1:])
    return str(
        chdb.query(
            f"""SELECT key, before.price, after.price FROM ({before}) AS before FULL JOIN ({after}) AS after USING (key)
                WHERE before.price IS DISTINCT FROM after.price ORDER BY key SETTINGS join_use_nulls = 1""",
            "TSV",
        )
    )


print(changed("arrow", "ArrowStream"), end="")
print(changed("jsonl", "JSONEachRow"), end="")
