# DuckDB, polars and pandas join a topic with itself, as of two moments.
recipe query-the-past-with-duckdb
requirements=$here/../cookbook/query-the-past-with-duckdb/requirements.txt
works DuckDB "$(pinned duckdb-cli "$requirements")" "SQL over a mount: a topic as of two moments, joined"
works polars "$(pinned polars "$requirements")" "\`read_ndjson\` over a mount: a topic as of two moments, joined"
works pandas "$(pinned pandas "$requirements")" "\`read_json\` of what \`freezeframe cat\` prints: the newest records of keys as of two moments"
