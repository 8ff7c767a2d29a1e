# pandas, pyarrow, and the package as it is in this repository.
python_programs
"$cache/$recipe/bin/pip" install -q --no-deps "$here/../../clients/python" || fail "expected the package to install"
SERVER=http://$(sed -n 's/^ready .* http=\([^ ]*\).*/\1/p' "$work/ready")
export SERVER
