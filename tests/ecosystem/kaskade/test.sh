# Kaskade is a program for terminals: tmux types into it, and reads its screen.
command -v tmux >/dev/null || { apt-get -qq update && apt-get -qq install -y tmux; } >"$work/apt.log" 2>&1 || skip "there is no tmux"
python_programs "$here/kaskade/requirements.txt" "$cache/kaskade"
start_server

"$freezeframe" topics create orders --partitions 3 2>"$work/topics.log"
printf '%s\n' 17:placed 18:placed 17:paid | "$freezeframe" produce orders -K: 2>"$work/produced.log"
"$freezeframe" groups seek billing --at start --topic orders --json >"$work/seek.log" 2>&1

terminal() { env -u TMUX LC_ALL=C.UTF-8 tmux -u -f /dev/null -S "$work/$mode.terminal" "$@"; }
type_keys() { terminal send-keys "$@"; }
# open_kaskade MODE ARGUMENT…: opens it in a terminal, which `terminal` is about from then on.
open_kaskade() {
    mode=$1
    terminal new-session -d -x 160 -y 30 "exec kaskade $* --bootstrap-servers $FREEZEFRAME_BOOTSTRAP" && terminal set-option -g remain-on-exit on ||
        fail "expected tmux to start kaskade"
    started+=("$(terminal display-message -p '#{pid}')")
}
# Spaces and frames of the screen are one space.
shows() { terminal capture-pane -p | tee "$work/screen.log" | LC_ALL=C.UTF-8 sed -E 's/[ │]+/ /g' | LC_ALL=C.UTF-8 grep -qE "$1"; }

# Topics with their partitions, replicas, replicas in sync, groups, members, records and lag.
open_kaskade admin
until_holds "kaskade to list the topic with its records and its group's lag" shows '^ ?orders 3 1 1 1 0 ≈3 ≈3 '
type_keys d
until_holds "kaskade to describe the topic" shows 'Partitions \[3\] Configurations \[[0-9]+\] Groups \[1\] Group Offsets \[3\]'
type_keys Escape
until_holds "kaskade to close the description" shows 'n Create'
type_keys n
until_holds "kaskade to show a form for a topic" shows 'Create Topic ─'
type_keys -l payments
until_holds "kaskade to show the name that was typed" shows ' payments $'
type_keys C-s
until_holds "kaskade to list the topic that it created" shows '^ ?payments 1 1 1 '
"$freezeframe" topics list | grep -qP '^payments\t1$' || fail "expected the server to have the topic of kaskade"

open_kaskade consumer --topic orders --earliest --key string --value string
for record in '17 placed' '18 placed' '17 paid'; do
    until_holds "kaskade to show the record $record" shows "^ $record "
done
works Kaskade "$(pinned kaskade "$here/kaskade/requirements.txt")" \
    "topics with partitions, settings, records, groups and lag; a topic created in its form; records with keys from the beginning"
