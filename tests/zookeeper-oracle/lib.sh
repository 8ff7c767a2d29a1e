# Shared by the scripts in this folder. Source it; it defines functions only.
# Every script: SCRIPT HOST:PORT WORKDIR   (HOST:PORT = an ALREADY RUNNING server that speaks the ZooKeeper protocol)
# Last line of stdout: 'N passed, N failed, N skipped'. Everything else goes to WORKDIR/*.log and to stdout above it.
set -u
ZK_CLIENT_VERSION=${ZK_CLIENT_VERSION:-3.9.5}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

zk_args() { # HOST:PORT WORKDIR -> HP, HOST, PORT, WD
  if [ $# -lt 2 ]; then echo "usage: $0 HOST:PORT WORKDIR" >&2; exit 2; fi
  HP=$1; HOST=${1%:*}; PORT=${1##*:}; mkdir -p "$2"; WD=$(cd "$2" && pwd)
}
zk_verdict() { # passed failed skipped
  echo "$1 passed, $2 failed, $3 skipped"
  [ "$2" -eq 0 ] && [ "$1" -gt 0 ]
}
need() { # need CMD DEBIAN-PACKAGE
  command -v "$1" >/dev/null 2>&1 || { apt-get update -qq >/dev/null && apt-get install -y -qq "$2" >/dev/null; }
}
# mvn_libs DIR G:A:V[:type[:classifier]] ...   resolves the artifacts and what they need into DIR/lib (once)
mvn_libs() {
  local dir=$1; shift
  local key; key=$(printf '%s\n' "$@" | sha256sum | cut -c1-16)
  [ -f "$dir/.done-$key" ] && return 0
  need mvn maven; need java default-jdk-headless
  mkdir -p "$dir"; rm -rf "$dir/lib"
  {
    echo '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    echo '<groupId>oracle</groupId><artifactId>libs</artifactId><version>1</version><packaging>pom</packaging><dependencies>'
    local c g a v t k
    for c in "$@"; do
      IFS=: read -r g a v t k <<<"$c"
      echo "<dependency><groupId>$g</groupId><artifactId>$a</artifactId><version>$v</version>${t:+<type>$t</type>}${k:+<classifier>$k</classifier>}</dependency>"
    done
    echo '</dependencies></project>'
  } >"$dir/pom.xml"
  (cd "$dir" && mvn -q -B dependency:copy-dependencies -DoutputDirectory=lib -DincludeScope=runtime) >"$dir/mvn.log" 2>&1 \
    || { echo "maven could not resolve: see $dir/mvn.log" >&2; grep -m3 ERROR "$dir/mvn.log" >&2; return 1; }
  touch "$dir/.done-$key"
}
# free_port: a free loopback port from $PORT_BASE up (default 19300)
free_port() { python3 - "${PORT_BASE:-19300}" <<'P'
import socket, sys
for p in range(int(sys.argv[1]), int(sys.argv[1]) + 100):
    s = socket.socket()
    try: s.bind(('127.0.0.1', p)); print(p); break
    except OSError: pass
    finally: s.close()
P
}
