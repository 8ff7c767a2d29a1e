# rsyslog takes syslog lines over TCP, writes them into a topic with omkafka, and reads them back with imkafka.
debian_programs rsyslog rsyslog-kafka libestr0 libfastjson4 liblognorm5 librdkafka1
modules=$(echo "$debian"/usr/lib/*-linux-gnu*/rsyslog)
start_server
port=$(free_port)
cat >"$work/out.conf" <<END
module(load="imtcp")
module(load="omkafka")
input(type="imtcp" address="127.0.0.1" port="$port")
template(name="key" type="string" string="%programname%")
template(name="line" type="string" string="%syslogseverity-text% %msg%")
action(type="omkafka" broker=["$FREEZEFRAME_BOOTSTRAP"] topic="syslog" dynaKey="on" key="key" template="line" partitions.auto="on")
END
cat >"$work/in.conf" <<END
module(load="imkafka")
input(type="imkafka" broker=["$FREEZEFRAME_BOOTSTRAP"] topic="syslog" consumergroup="readers" ruleset="read"
      confParam=["auto.offset.reset=earliest"])
template(name="line" type="string" string="%rawmsg%\n")
ruleset(name="read") { action(type="omfile" file="$work/read" template="line") }
END
run_rsyslog() {
    LD_LIBRARY_PATH=$debian_libraries rsyslogd -n -M "$modules" -i "$work/$1.pid" -f "$work/$1.conf" >"$work/$1.log" 2>&1 &
    started+=($!)
}

"$freezeframe" topics create syslog --partitions 2 2>"$work/topics.log"
run_rsyslog out
is_open() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }
until_holds "rsyslog to listen" is_open
log() { logger --server 127.0.0.1 --port "$port" --tcp --rfc5424 --priority "$1" --tag "$2" "$3"; }
log user.err billing 'payment 17 failed'
log user.info billing 'payment 18 paid'
log user.info shipping 'parcel 18 sent'

printf '%s\n' 'billing err payment 17 failed' 'billing info payment 18 paid' 'shipping info parcel 18 sent' >"$work/expected"
has_lines() { [[ $("$freezeframe" cat syslog | wc -l) -eq 3 ]]; }
until_holds "three records" has_lines
"$freezeframe" cat syslog -f '%k %v' | sort | diff "$work/expected" - || fail "expected lines of syslog as records, with their programs as keys"

run_rsyslog in
has_read() { [[ -e $work/read && $(wc -l <"$work/read") -eq 3 ]]; }
until_holds "imkafka to read three lines" has_read
sort "$work/read" | diff <(cut -d ' ' -f 2- "$work/expected" | sort) - || fail "expected imkafka to read what omkafka wrote"
version=$(LD_LIBRARY_PATH=$debian_libraries rsyslogd -v | sed -n '1s/^rsyslogd *\([0-9.]*\).*/\1/p')
works rsyslog "Debian's $version" "\`omkafka\` writes lines of syslog as records whose keys are the programs; \`imkafka\` reads them in a group"
