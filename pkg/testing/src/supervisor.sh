# Runs a command that cannot outlive its starter. Process::launch starts this script as the leader
# of its own process group:
#
#   sh -c SCRIPT NAME PROGRAM [ARGUMENT...]
#
# stdin   a pipe whose other end only the starter holds; the kernel closes it when the starter
#         ends in any way
# stdout  held open without output while the command runs; its end tells others that the command has
#         ended
# stderr  the destination of the command's stdout and stderr
#
# The shell replaces itself by the command. So the starter is the command's parent and gets its real
# exit status, and no other process can have a pid that the starter has not reaped. A watchdog stays
# in the group; it is forked twice, so it is no child of the command. It does not end with the
# command: the starter kills the whole group when the command has ended.

exec 3<&0 </dev/null
(
	(
		trap '' HUP INT QUIT TERM ALRM USR1 USR2
		while read -r _ <&3; do :; done
		# 0 is this process group, which cannot be a reused pid. SIGKILL also ends a stopped process.
		kill -KILL 0
	) >/dev/null 2>&1 &
)
exec "$@" 3<&- 4>&1 1>&2
