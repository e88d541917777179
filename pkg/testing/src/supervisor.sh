# Runs a command that cannot outlive its starter. Process::launch starts this script as the leader
# of its own process group:
#
#   sh -c SCRIPT NAME PROGRAM [ARGUMENT...]
#
# stdin   a pipe whose other end only the starter holds; the kernel closes it when the starter
#         ends in any way
# stdout  held open without output while the command runs; it closes when the command has ended,
#         which the janitor waits for
# stderr  the destination of the command's stdout and stderr
#
# The shell replaces itself with the command. So the starter is the command's parent and gets its
# real exit status, and the kernel does not reuse the pid before the starter has reaped it. A
# watchdog stays in the group; it is forked twice, so it is no child of the command. The watchdog
# does not end with the command: the starter kills the whole group when the command has ended.
#
# TIMER_SLACK is the number of nanoseconds for which Linux may delay the timers of the command, so
# that it wakes up once for several of them. By default, that is 50,000.

exec 3<&0 </dev/null
(
	(
		trap '' HUP INT QUIT TERM ALRM USR1 USR2
		while read -r _ <&3; do :; done
		# 0 is this process group, which cannot be a reused pid. SIGKILL also ends a stopped process.
		kill -KILL 0
	) >/dev/null 2>&1 &
)
[ -z "${TIMER_SLACK-}" ] || echo "$TIMER_SLACK" 2>/dev/null >/proc/self/timerslack_ns || :
exec "$@" 3<&- 4>&1 1>&2
