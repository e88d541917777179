# Runs a command that cannot outlive whoever started it. Process::spawn starts this as the leader of a process group of its own:
#
#   sh -c SCRIPT NAME PROGRAM [ARGUMENT...]
#
# stdin   a pipe whose other end only the starter holds; the kernel closes it when the starter dies, however it dies
# stdout  held open, and never written to, for as long as the command runs: its end is how others learn that the command is gone
# stderr  where the command's own stdout and stderr go
#
# The shell becomes the command, so the starter is its parent and sees its true exit status, and a pid that the starter has not
# reaped cannot mean another process. A watchdog stays behind in the group; it is forked twice, so it is no child of the command.
# It is not asked to end with the command: the starter ends the whole group when it sees the command's end.

exec 3<&0 </dev/null
(
	(
		trap '' HUP INT QUIT TERM ALRM USR1 USR2
		while read -r _ <&3; do :; done
		# 0 is this process group: no pid that could have been reused, and SIGKILL reaches a stopped process too.
		kill -KILL 0
	) >/dev/null 2>&1 &
)
exec "$@" 3<&- 4>&1 1>&2
