# DuckDB's command line, pandas and polars, in a directory of their own.
[[ -e /dev/fuse ]] || skip "there is no /dev/fuse to mount with"
python_programs "$here/$recipe/requirements.txt" "$cache/$recipe"
